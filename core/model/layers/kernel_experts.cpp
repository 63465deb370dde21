// See kernel_experts.h.
#include "model/layers/kernel_experts.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "model/device/kernel_table.h"
#include "model/layers/kernel_gates.h"

namespace mortise {
namespace {

// By arithmetic for an H200, and not measured. Libtorch's products read all weights at the memory's rate, and the host starts
// three of them for each expert and waits: about 20 us. A token of an expert costs 6 H I flops. In float32 the time of
// libtorch's products behind that is left out. The kernels always take some tokens for each expert, which cost little more than
// reading its weights. docs/cuda.md has numbers that follow from these.
constexpr double kLaunches_s = 20e-6;
constexpr double kFlops = 25e12, kFlopsOfBfloat16 = 150e12, kFlopsOfLibtorchInBfloat16 = 600e12;  // in a second
constexpr int64_t kAlwaysTaken = 8;

// Flops that the kernels do in one second more than libtorch's products take for them.
double flops_of_a_second_more(bool is_rounded) {
  return is_rounded ? 1.0 / (1.0 / kFlopsOfBfloat16 - 1.0 / kFlopsOfLibtorchInBfloat16) : kFlops;
}

const DeviceKernels& kernels_of(const at::Tensor& x) { return *device_kernels(x.device()); }

// The pairs of tokens and experts, and the tensors that have them.
struct GroupedPairs {
  at::Tensor order, tiles;
  MortiseCudaExpertPairs pairs;
};

int64_t rows_of_tile(int64_t num_pairs, int64_t num_experts, bool is_rounded) {
  const int64_t few = is_rounded ? MORTISE_CUDA_FEW_TILE_ROWS_BF16 : MORTISE_CUDA_FEW_TILE_ROWS;
  const int64_t many = is_rounded ? MORTISE_CUDA_TILE_ROWS_BF16 : MORTISE_CUDA_TILE_ROWS;
  return num_pairs * 4 <= num_experts * few * 3 ? few : many;
}

GroupedPairs group_pairs(const at::Tensor& experts_NK, int64_t num_experts, bool is_rounded) {
  const int64_t count = experts_NK.numel();
  TORCH_CHECK(count <= INT32_MAX, "a pass has too many tokens for its experts: ", count);
  const int64_t rows = rows_of_tile(count, num_experts, is_rounded);
  const at::TensorOptions numbers = experts_NK.options().dtype(at::kInt);
  constexpr int64_t kTileNumbers = sizeof(MortiseCudaExpertTile) / sizeof(int32_t);
  GroupedPairs out{at::empty({count}, numbers), at::empty({count / rows + num_experts, kTileNumbers}, numbers), {}};
  out.pairs = {out.order.mutable_data_ptr<int32_t>(), static_cast<MortiseCudaExpertTile*>(out.tiles.mutable_data_ptr()),
               static_cast<int32_t>(count), static_cast<int32_t>(num_experts), static_cast<int32_t>(rows)};
  check_started(kernels_of(experts_NK)
                    .group_experts(experts_NK.const_data_ptr<int64_t>(), out.pairs, stream_of(experts_NK.device())),
                "group_experts");
  return out;
}

// The rows of all pairs. `x` has one for each `divisor` pairs.
at::Tensor product_of_pairs(const at::Tensor& x, int64_t divisor, const at::Tensor& weight_E, bool is_stacked,
                            const at::Tensor& bias_EO, const GroupedPairs& grouped) {
  const int64_t columns = weight_E.size(is_stacked ? 2 : 1);
  const at::Tensor bias = bias_EO.defined() ? bias_EO.contiguous() : bias_EO;
  const at::Tensor y = at::empty({grouped.order.size(0), columns}, x.options().dtype(at::kFloat));
  check_started(kernels_of(x).expert_product(kernel_in(x), static_cast<int32_t>(divisor), weight_E.const_data_ptr(),
                                             is_stacked ? 1 : 0,
                                             bias.defined() ? bias.const_data_ptr<float>() : nullptr, grouped.pairs,
                                             x.size(1), columns, y.mutable_data_ptr<float>(), stream_of(x.device())),
                "expert_product");
  return y;
}

}  // namespace

bool kernels_take_experts(const ModelConfig& config, int64_t num_tokens, bool is_rounded) {
  return num_tokens <= most_tokens_of_kernels(config, is_rounded);
}

int64_t most_tokens_of_kernels(const ModelConfig& config, bool is_rounded) {
  const MoeConfig& moe = config.moe;
  if (moe.num_experts == 0 || moe.experts_per_token > MORTISE_CUDA_MOST_EXPERTS_PER_TOKEN) return 0;
  const double flops = 6.0 * static_cast<double>(config.hidden_size * moe.expert_size);
  const double at_once = kLaunches_s * flops_of_a_second_more(is_rounded) / flops;
  const int64_t most = std::max(kAlwaysTaken, static_cast<int64_t>(at_once));
  return most * moe.num_experts / moe.experts_per_token;
}

bool kernels_read_experts(const LayerMatrices& matrices) {
  constexpr uintptr_t kLoad = 16;
  const auto is_read = [](const at::Tensor& x) {
    return x.is_contiguous() && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kLoad == 0;
  };
  return is_read(matrices.expert_gate_up_E2IH) && is_read(matrices.expert_down_EHI);
}

at::Tensor kernel_mixture(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                          const ExpertLeaves& leaves, const ModelConfig& config) {
  const c10::OptionalDeviceGuard own_device(x_NH.device());
  const bool is_stacked = config.moe.is_gpt_oss;
  const int64_t each = routing.experts_NK.size(1);
  const at::Tensor &gate_up_E = matrices.expert_gate_up_E2IH, &down_E = matrices.expert_down_EHI;
  const at::ScalarType input = gate_up_E.scalar_type();
  const GroupedPairs grouped =
      group_pairs(routing.experts_NK.contiguous(), config.moe.num_experts, input == at::kBFloat16);
  const at::Tensor x = x_NH.to(input).contiguous(), weights = routing.weights_NK.contiguous();
  at::Tensor gate_up = product_of_pairs(x, each, gate_up_E, is_stacked, leaves.gate_up_bias, grouped);
  const at::Tensor units = kernel_expert_gate(gate_up, config, input);
  gate_up.reset();
  const at::Tensor y = product_of_pairs(units, 1, down_E, is_stacked, leaves.down_bias, grouped);
  const at::Tensor out = at::empty({x.size(0), y.size(1)}, y.options());
  check_started(kernels_of(x).sum_experts(y.const_data_ptr<float>(), weights.const_data_ptr<float>(), x.size(0),
                                          static_cast<int32_t>(each), y.size(1), out.mutable_data_ptr<float>(),
                                          stream_of(x.device())),
                "sum_experts");
  return out;
}

Routing kernel_route(const at::Tensor& logits_NE, const MoeConfig& moe) {
  const c10::OptionalDeviceGuard own_device(logits_NE.device());
  const at::Tensor logits = logits_NE.contiguous();
  const int64_t num_tokens = logits.size(0), each = moe.experts_per_token;
  Routing out{at::empty({num_tokens, each}, logits.options().dtype(at::kLong)),
              at::empty({num_tokens, each}, logits.options())};
  check_started(kernels_of(logits).route(logits.const_data_ptr<float>(), num_tokens,
                                         static_cast<int32_t>(logits.size(1)), static_cast<int32_t>(each),
                                         moe.normalizes ? 0 : 1, out.experts_NK.mutable_data_ptr<int64_t>(),
                                         out.weights_NK.mutable_data_ptr<float>(), stream_of(logits.device())),
                "route");
  return out;
}

int64_t kernel_mixture_bytes(const ModelConfig& config, int64_t number) {
  const MoeConfig& moe = config.moe;
  const int64_t units = number * moe.expert_size;
  const int64_t pair = std::max(4 * 2 * moe.expert_size + units, units + 4 * config.hidden_size);
  const int64_t routing = 8 + 4 + 4;  // the expert, its weight, the place among all pairs
  const int64_t rounded = number < 4 ? number * config.hidden_size : 0;
  return moe.experts_per_token * (pair + routing) + 4 * moe.num_experts + rounded + 4 * config.hidden_size;
}

}  // namespace mortise
