// See cuda_attention.h.
#include "model/layers/cuda_attention.h"

#include <ATen/Context.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kFromBottomRight = 2;  // mask type of _efficient_attention_*: a query's last key is its own

// Where each sequence begins, and the end of the last, as int32 on the device.
at::Tensor begins_of(const std::vector<int64_t>& lengths, at::Device device) {
  at::Tensor begins = at::empty({static_cast<int64_t>(lengths.size()) + 1}, at::kInt);
  auto* const data = begins.mutable_data_ptr<int32_t>();
  data[0] = 0;
  for (size_t i = 0; i < lengths.size(); ++i) data[i + 1] = data[i] + static_cast<int32_t>(lengths[i]);
  return begins.to(device);
}

// What both operators take.
struct Sequences {
  at::Tensor query_begins, key_begins;
  int64_t most_queries, most_keys;
};

// Both operators have a deterministic backward, and take it only while operations without one are errors. Elsewhere a
// run asks for warnings (compute_device.cpp).
class DeterministicBackward {
 public:
  DeterministicBackward() : warns_(at::globalContext().deterministicAlgorithmsWarnOnly()) { set(false); }
  ~DeterministicBackward() { set(warns_); }
  DeterministicBackward(const DeterministicBackward&) = delete;
  DeterministicBackward& operator=(const DeterministicBackward&) = delete;

 private:
  static void set(bool warns) {
    at::Context& context = at::globalContext();
    if (context.deterministicAlgorithms()) context.setDeterministicAlgorithms(true, warns);
  }
  bool warns_;
};

void save_sizes(AutogradContext* ctx, int64_t most_queries, int64_t most_keys, double scale) {
  ctx->saved_data["most_queries"] = most_queries;
  ctx->saved_data["most_keys"] = most_keys;
  ctx->saved_data["scale"] = scale;
}

class FlashAttention : public torch::autograd::Function<FlashAttention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& query_begins, const at::Tensor& key_begins, int64_t most_queries,
                            int64_t most_keys, double scale) {
    const auto [out, lse, rng_state, unused, mask] = at::_flash_attention_forward(
        q, k, v, query_begins, key_begins, most_queries, most_keys, /*dropout_p=*/0.0, /*is_causal=*/true,
        /*return_debug_mask=*/false, std::optional<double>(scale));
    ctx->save_for_backward({q, k, v, out, lse, query_begins, key_begins, rng_state, unused});
    save_sizes(ctx, most_queries, most_keys, scale);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto s = ctx->get_saved_variables();
    const DeterministicBackward fixed_order;
    auto [dq, dk, dv] = at::_flash_attention_backward(
        grads[0].contiguous(), s[0], s[1], s[2], s[3], s[4], s[5], s[6], ctx->saved_data["most_queries"].toInt(),
        ctx->saved_data["most_keys"].toInt(), /*dropout_p=*/0.0, /*is_causal=*/true, s[7], s[8],
        std::optional<double>(ctx->saved_data["scale"].toDouble()));
    variable_list out{dq, dk, dv};
    out.resize(8);  // the other inputs have no gradient
    return out;
  }
};

// Has no grouped heads: k and v come with one for each query's head. All are [1, N, H, D].
class EfficientAttention : public torch::autograd::Function<EfficientAttention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& query_begins, const at::Tensor& key_begins, int64_t most_queries,
                            int64_t most_keys, double scale) {
    const auto result = at::_efficient_attention_forward(q, k, v, /*bias=*/std::nullopt, query_begins, key_begins,
                                                         most_queries, most_keys, /*dropout_p=*/0.0, kFromBottomRight,
                                                         /*compute_log_sumexp=*/true, scale);
    const at::Tensor& out = std::get<0>(result);
    ctx->save_for_backward(
        {q, k, v, out, std::get<1>(result), query_begins, key_begins, std::get<2>(result), std::get<3>(result)});
    save_sizes(ctx, most_queries, most_keys, scale);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto s = ctx->get_saved_variables();
    const DeterministicBackward fixed_order;
    // One split of the keys adds each gradient in one order.
    const auto result = at::_efficient_attention_backward(
        grads[0].contiguous(), s[0], s[1], s[2], /*bias=*/std::nullopt, s[3], s[5], s[6],
        ctx->saved_data["most_queries"].toInt(), ctx->saved_data["most_keys"].toInt(), s[4], /*dropout_p=*/0.0, s[7],
        s[8], kFromBottomRight, /*bias_requires_grad=*/false, ctx->saved_data["scale"].toDouble(),
        /*num_splits_key=*/1);
    variable_list out{std::get<0>(result), std::get<1>(result), std::get<2>(result)};
    out.resize(8);
    return out;
  }
};

}  // namespace

bool has_cuda_attention(const at::Tensor& q_NHD, const AttentionShape& shape) {
  const int64_t dim = shape.head_dim;
  if (!q_NHD.is_cuda() || q_NHD.scalar_type() != at::kFloat) return false;
  return shape.window == 0 && shape.softcap == 0.0 && !shape.sinks_A.defined() && dim % 8 == 0 && dim <= 256;
}

at::Tensor cuda_attention(const at::Tensor& q_NHD, const at::Tensor& k_MHD, const at::Tensor& v_MHD,
                          const SegmentLengths& lengths, const AttentionShape& shape) {
  const at::Device device = q_NHD.device();
  const Sequences all{begins_of(lengths.queries, device), begins_of(lengths.keys, device),
                      *std::ranges::max_element(lengths.queries), *std::ranges::max_element(lengths.keys)};
  const at::Tensor q = q_NHD.contiguous(), k = k_MHD.contiguous(), v = v_MHD.contiguous();
  if (q.scalar_type() == at::kBFloat16) {
    return FlashAttention::apply(q, k, v, all.query_begins, all.key_begins, all.most_queries, all.most_keys,
                                 shape.scale);
  }
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const auto repeated = [group](const at::Tensor& x) { return x.repeat_interleave(group, 1).unsqueeze(0); };
  return EfficientAttention::apply(q.unsqueeze(0), repeated(k), repeated(v), all.query_begins, all.key_begins,
                                   all.most_queries, all.most_keys, shape.scale)
      .squeeze(0);
}

}  // namespace mortise
