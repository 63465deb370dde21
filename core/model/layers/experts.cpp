// See experts.h.
#include "model/layers/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "model/layers/clamped_gate.h"
#include "model/layers/expert_lora.h"
#include "model/layers/gated.h"
#include "model/layers/linear.h"
#include "model/tensor/blas.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

using blas::Trans;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kTileRows = 128;  // rows per tile of a product; weights per tile in their gradient

// M = N K rows, sorted by expert and then by token.
struct Dispatch {
  at::Tensor tokens_M;           // int64: the token of each row
  at::Tensor places_NK;          // int64: the rows of each token
  std::vector<int64_t> offsets;  // [E + 1]: the rows of each expert
};

Dispatch sort_by_expert(const at::Tensor& experts_NK, int64_t num_experts) {
  const at::Tensor experts = experts_NK.contiguous();
  const int64_t per_token = experts.size(1), count = experts.numel();
  const int64_t* const expert = experts.const_data_ptr<int64_t>();
  Dispatch out{at::empty({count}, at::kLong), at::empty(experts.sizes(), at::kLong), {}};
  out.offsets.assign(static_cast<size_t>(num_experts) + 1, 0);
  for (int64_t i = 0; i < count; ++i) ++out.offsets[static_cast<size_t>(expert[i]) + 1];
  for (size_t e = 1; e < out.offsets.size(); ++e) out.offsets[e] += out.offsets[e - 1];
  std::vector<int64_t> next(out.offsets.begin(), out.offsets.end() - 1);
  auto* const tokens = out.tokens_M.mutable_data_ptr<int64_t>();
  auto* const places = out.places_NK.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    places[i] = next[static_cast<size_t>(expert[i])]++;
    tokens[places[i]] = i / per_token;
  }
  return out;
}

struct Tile {
  int64_t expert = 0, begin = 0, end = 0;
};

// The ranges of `size(expert)` in steps of kTileRows.
template <class Size>
std::vector<Tile> cut_tiles(const std::vector<int64_t>& offsets, const Size& size) {
  std::vector<Tile> out;
  for (int64_t e = 0; e + 1 < static_cast<int64_t>(offsets.size()); ++e) {
    const int64_t end = size(e);
    for (int64_t begin = 0; begin < end; begin += kTileRows)
      out.push_back({e, begin, std::min(end, begin + kTileRows)});
  }
  return out;
}

// body(zero of x's dtype, zero of the result's): sums over bfloat16 numbers are float32.
template <class Body>
void dispatch_product(const at::Tensor& x, const Body& body) {
  if (x.scalar_type() == at::kBFloat16) {
    body(c10::BFloat16(), 0.0F);
  } else {
    dispatch_float(x, [&](auto zero) { body(zero, zero); });
  }
}

}  // namespace

void grouped_product(const at::Tensor& x_MI, const at::Tensor& weight_EAB, Trans trans,
                     const std::vector<int64_t>& offsets, const at::Tensor& y_MO) {
  const auto rows = [&](int64_t e) { return offsets[static_cast<size_t>(e) + 1] - offsets[static_cast<size_t>(e)]; };
  const std::vector<Tile> tiles = cut_tiles(offsets, rows);
  const int64_t in = x_MI.size(1), out = y_MO.size(1);
  dispatch_product(x_MI, [&](auto in_zero, auto zero) {
    using In = decltype(in_zero);
    using T = decltype(zero);
    const In* const x = x_MI.const_data_ptr<In>();
    const In* const weight = weight_EAB.const_data_ptr<In>();
    T* const y = y_MO.mutable_data_ptr<T>();
    parallel_tasks<T>(static_cast<int64_t>(tiles.size()), 0, [&](int64_t i, T*) {
      const Tile& tile = tiles[static_cast<size_t>(i)];
      const int64_t row = offsets[static_cast<size_t>(tile.expert)] + tile.begin;
      blas::gemm(Trans::kNo, trans, tile.end - tile.begin, out, in, T(1), x + row * in, in,
                 weight + tile.expert * in * out, weight_EAB.size(2), T(0), y + row * out, out);
    });
  });
}

void grouped_weight_gradient(const at::Tensor& dy_MO, const at::Tensor& x_MI, const std::vector<int64_t>& offsets,
                             const at::Tensor& dw_EOI) {
  const int64_t in = x_MI.size(1), out = dy_MO.size(1);
  const std::vector<Tile> tiles = cut_tiles(offsets, [&](int64_t) { return out; });
  dispatch_product(x_MI, [&](auto in_zero, auto zero) {
    using In = decltype(in_zero);
    using T = decltype(zero);
    const In* const x = x_MI.const_data_ptr<In>();
    const In* const dy = dy_MO.const_data_ptr<In>();
    T* const dw = dw_EOI.mutable_data_ptr<T>();
    parallel_tasks<T>(static_cast<int64_t>(tiles.size()), 0, [&](int64_t i, T*) {
      const Tile& tile = tiles[static_cast<size_t>(i)];
      const auto e = static_cast<size_t>(tile.expert);
      T* const target = dw + (tile.expert * out + tile.begin) * in;
      const int64_t rows = offsets[e + 1] - offsets[e];
      if (rows == 0) {
        std::fill_n(target, (tile.end - tile.begin) * in, T(0));
        return;
      }
      blas::gemm(Trans::kYes, Trans::kNo, tile.end - tile.begin, in, rows, T(1), dy + offsets[e] * out + tile.begin,
                 out, x + offsets[e] * in, in, T(0), target, in);
    });
  });
}

namespace {

// x[rows of e] op(weight[e]): the weights are [E, out, in], or in the stacked form [E, in, out].
class GroupedLinear : public torch::autograd::Function<GroupedLinear> {
 public:
  // `leaves`: equal row slices of the weights, expert by expert.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight_EAB,
                            at::TensorList leaves, const std::vector<int64_t>& offsets, bool is_stacked) {
    at::Tensor y = at::empty({x.size(0), weight_EAB.size(is_stacked ? 2 : 1)}, x.options());
    const at::Tensor input = x.to(weight_EAB.scalar_type());
    grouped_product(input, weight_EAB, is_stacked ? Trans::kNo : Trans::kYes, offsets, y);
    ctx->save_for_backward({input, weight_EAB});
    ctx->saved_data["is_stacked"] = is_stacked;
    ctx->saved_data["offsets"] = offsets;
    ctx->saved_data["num_leaves"] = static_cast<int64_t>(leaves.size());
    ctx->saved_data["trained"] = trained_leaves(leaves);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::TensorOptions options = grads[0].options();
    const at::Tensor dy = grads[0].to(weight.scalar_type()).contiguous();
    const std::vector<int64_t> offsets = ctx->saved_data["offsets"].toIntVector();
    const int64_t num_leaves = ctx->saved_data["num_leaves"].toInt();
    const bool is_stacked = ctx->saved_data["is_stacked"].toBool();
    variable_list out(2);  // x, weight
    if (ctx->needs_input_grad(0)) {
      out[0] = at::empty(x.sizes(), options);
      grouped_product(dy, weight, is_stacked ? Trans::kYes : Trans::kNo, offsets, out[0]);
    }
    at::Tensor dw;
    const std::vector<int64_t> trained = ctx->saved_data["trained"].toIntVector();
    if (std::ranges::find(trained, 1) != trained.end()) {
      dw = at::empty(weight.sizes(), options);
      grouped_weight_gradient(is_stacked ? x : dy, is_stacked ? dy : x, offsets, dw);
      if (!is_stacked) dw = dw.view({weight.size(0) * weight.size(1), weight.size(2)});
    }
    if (is_stacked) {
      out.push_back(dw);
      out.insert(out.end(), 2, at::Tensor());  // offsets, is_stacked
      return out;
    }
    const int64_t rows = num_leaves == 0 ? 0 : weight.size(0) * weight.size(1) / num_leaves;
    for (int64_t i = 0; i < num_leaves; ++i)
      out.push_back(leaf_gradient(dw, i * rows, rows, trained, static_cast<size_t>(i)));
    out.insert(out.end(), 2, at::Tensor());  // offsets, is_stacked
    return out;
  }
};

// y[rows of e] + bias[e]. CONSUMES y: the product that makes it does not need it for backward.
class AddExpertBias : public torch::autograd::Function<AddExpertBias> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const at::Tensor& bias_EO,
                            const std::vector<int64_t>& offsets) {
    ctx->saved_data["offsets"] = offsets;
    for_each_expert(y, bias_EO, offsets, [](auto* row, auto* bias, int64_t i) { row[i] += bias[i]; });
    ctx->mark_dirty({y});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const std::vector<int64_t> offsets = ctx->saved_data["offsets"].toIntVector();
    at::Tensor d_bias;
    if (ctx->needs_input_grad(1)) {
      d_bias = at::zeros({static_cast<int64_t>(offsets.size()) - 1, grads[0].size(1)}, grads[0].options());
      for_each_expert(grads[0].contiguous(), d_bias, offsets,
                      [](auto* row, auto* sum, int64_t i) { sum[i] += row[i]; });
    }
    return {grads[0], d_bias, at::Tensor()};
  }

 private:
  // body(row, numbers of its expert, column) for every number, an expert's rows in their order.
  template <class Body>
  static void for_each_expert(const at::Tensor& rows_MO, const at::Tensor& each_EO, const std::vector<int64_t>& offsets,
                              const Body& body) {
    const int64_t width = rows_MO.size(1);
    dispatch_float(rows_MO, [&](auto zero) {
      using T = decltype(zero);
      T* const rows = rows_MO.mutable_data_ptr<T>();
      T* const each = each_EO.mutable_data_ptr<T>();
      parallel_tasks<T>(each_EO.size(0), 0, [&](int64_t e, T*) {
        const auto expert = static_cast<size_t>(e);
        for (int64_t r = offsets[expert]; r < offsets[expert + 1]; ++r) {
          for (int64_t i = 0; i < width; ++i) body(rows + r * width, each + e * width, i);
        }
      });
    });
  }
};

// to[n] = sum over k of weight[n, k] from[places[n, k]]; weight null: 1.
void sum_places(const at::Tensor& from_MH, const at::Tensor& places_NK, const at::Tensor& weight_NK,
                const at::Tensor& to_NH) {
  const int64_t width = from_MH.size(1), per_token = places_NK.size(1);
  const int64_t* const places = places_NK.const_data_ptr<int64_t>();
  dispatch_float(from_MH, [&](auto zero) {
    using T = decltype(zero);
    const T* const from = from_MH.const_data_ptr<T>();
    const T* const weight = weight_NK.defined() ? weight_NK.const_data_ptr<T>() : nullptr;
    T* const to = to_NH.mutable_data_ptr<T>();
    compute_ranges(places_NK.size(0), std::max<int64_t>(1, 16384 / width), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        T* __restrict row = to + n * width;
        std::fill_n(row, width, T(0));
        for (int64_t k = n * per_token; k < (n + 1) * per_token; ++k) {
          const T* __restrict source = from + places[k] * width;
          const T w = weight != nullptr ? weight[k] : T(1);
          for (int64_t i = 0; i < width; ++i) row[i] += w * source[i];
        }
      }
    });
  });
}

// The rows of each expert.
class GatherRows : public torch::autograd::Function<GatherRows> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& tokens_M,
                            const at::Tensor& places_NK) {
    ctx->save_for_backward({places_NK});
    return at::index_select(x, 0, tokens_M);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor places = ctx->get_saved_variables()[0];
    const at::Tensor dy = grads[0].contiguous();
    const at::Tensor dx = at::empty({places.size(0), dy.size(1)}, dy.options());
    sum_places(dy, places, {}, dx);
    return {dx, at::Tensor(), at::Tensor()};
  }
};

// A token's rows back together, by their weights.
class CombineRows : public torch::autograd::Function<CombineRows> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const at::Tensor& weights_NK,
                            const at::Tensor& places_NK) {
    at::Tensor out = at::empty({places_NK.size(0), y.size(1)}, y.options());
    const at::Tensor weights = weights_NK.contiguous();
    sum_places(y, places_NK, weights, out);
    ctx->save_for_backward({y, weights, places_NK});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor dout = grads[0].contiguous();
    at::Tensor dy = at::empty(saved[0].sizes(), saved[0].options());
    at::Tensor dw = at::empty(saved[1].sizes(), saved[1].options());
    const int64_t width = dout.size(1), per_token = dw.size(1);
    const int64_t* const places = saved[2].const_data_ptr<int64_t>();
    dispatch_float(dout, [&](auto zero) {
      using T = decltype(zero);
      const T* const y = saved[0].const_data_ptr<T>();
      const T* const weights = saved[1].const_data_ptr<T>();
      const T* const from = dout.const_data_ptr<T>();
      T* const d_y = dy.mutable_data_ptr<T>();
      T* const d_weights = dw.mutable_data_ptr<T>();
      compute_ranges(dout.size(0), std::max<int64_t>(1, 16384 / width), [&](int64_t begin, int64_t end) {
        for (int64_t k = begin * per_token; k < end * per_token; ++k) {
          const T* __restrict source = from + k / per_token * width;
          const T* __restrict row = y + places[k] * width;
          T* __restrict target = d_y + places[k] * width;
          T dot = 0;
#pragma omp simd reduction(+ : dot)
          for (int64_t i = 0; i < width; ++i) {
            dot += source[i] * row[i];
            target[i] = weights[k] * source[i];
          }
          d_weights[k] = dot;
        }
      });
    });
    return {dy, dw, at::Tensor()};
  }
};

// The product with the experts' matrices of one kind, adapted or not.
at::Tensor expert_product(const at::Tensor& x, const at::Tensor& matrix, const std::vector<at::Tensor>& leaves,
                          const LoraMatrix& lora, const std::vector<int64_t>& offsets, bool is_stacked) {
  if (lora.defined()) return grouped_lora(x, matrix, lora, offsets, is_stacked);
  return GroupedLinear::apply(x, matrix, at::TensorList(leaves), offsets, is_stacked);
}

}  // namespace

at::Tensor mixture(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                   const ExpertLeaves& leaves, const ModelConfig& config) {
  const MoeConfig& moe = config.moe;
  const Dispatch rows = sort_by_expert(routing.experts_NK, moe.num_experts);
  const at::Tensor x = GatherRows::apply(x_NH, rows.tokens_M, rows.places_NK);
  at::Tensor gate_up = expert_product(x, matrices.expert_gate_up_E2IH, leaves.gate_up, leaves.gate_up_lora,
                                      rows.offsets, moe.is_gpt_oss);
  if (moe.is_gpt_oss) gate_up = AddExpertBias::apply(gate_up, leaves.gate_up_bias, rows.offsets);
  const at::Tensor units =
      moe.is_gpt_oss ? clamped_gate(gate_up, moe.swiglu_alpha, moe.swiglu_limit) : gated(gate_up, config.activation);
  at::Tensor y =
      expert_product(units, matrices.expert_down_EHI, leaves.down, leaves.down_lora, rows.offsets, moe.is_gpt_oss);
  if (moe.is_gpt_oss) y = AddExpertBias::apply(y, leaves.down_bias, rows.offsets);
  return CombineRows::apply(y, routing.weights_NK, rows.places_NK);
}

}  // namespace mortise
