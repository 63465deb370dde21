// See cuda_attention.h.
#include "model/layers/cuda_attention.h"

#include <ATen/Context.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kFromBottomRight = 2;  // mask type of _efficient_attention_*: a query's last key is its own

// What both operators take, next to the tensors.
struct Sizes {
  int64_t most_queries, most_keys, window;  // window 0: none
  double scale;

  void save(AutogradContext* ctx) const {
    ctx->saved_data["most_queries"] = most_queries;
    ctx->saved_data["most_keys"] = most_keys;
    ctx->saved_data["window"] = window;
    ctx->saved_data["scale"] = scale;
  }
  static Sizes saved(const AutogradContext* ctx) {
    const auto number = [&](const char* name) { return ctx->saved_data.at(name).toInt(); };
    return {number("most_queries"), number("most_keys"), number("window"), ctx->saved_data.at("scale").toDouble()};
  }
  // The keys that flash sees before a query's own and behind it; _efficient_attention_* counts the own one too.
  [[nodiscard]] std::optional<int64_t> keys_before() const {
    return window > 0 ? std::optional(window - 1) : std::nullopt;
  }
  [[nodiscard]] std::optional<int64_t> keys_behind() const { return window > 0 ? std::optional(0) : std::nullopt; }
  [[nodiscard]] std::optional<int64_t> keys_seen() const { return window > 0 ? std::optional(window) : std::nullopt; }
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

class FlashAttention : public torch::autograd::Function<FlashAttention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& query_begins, const at::Tensor& key_begins, const Sizes& sizes) {
    const auto [out, lse, rng_state, unused, mask] = at::_flash_attention_forward(
        q, k, v, query_begins, key_begins, sizes.most_queries, sizes.most_keys, /*dropout_p=*/0.0, /*is_causal=*/true,
        /*return_debug_mask=*/false, std::optional<double>(sizes.scale), sizes.keys_before(), sizes.keys_behind());
    ctx->save_for_backward({q, k, v, out, lse, query_begins, key_begins, rng_state, unused});
    sizes.save(ctx);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto s = ctx->get_saved_variables();
    const DeterministicBackward fixed_order;
    const Sizes sizes = Sizes::saved(ctx);
    auto [dq, dk, dv] = at::_flash_attention_backward(
        grads[0].contiguous(), s[0], s[1], s[2], s[3], s[4], s[5], s[6], sizes.most_queries, sizes.most_keys,
        /*dropout_p=*/0.0, /*is_causal=*/true, s[7], s[8], std::optional<double>(sizes.scale), sizes.keys_before(),
        sizes.keys_behind());
    variable_list out{dq, dk, dv};
    out.resize(6);  // the other inputs have no gradient
    return out;
  }
};

// Has no grouped heads: k and v come with one for each query's head. All are [1, N, H, D].
class EfficientAttention : public torch::autograd::Function<EfficientAttention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& query_begins, const at::Tensor& key_begins, const Sizes& sizes) {
    const auto result = at::_efficient_attention_forward(
        q, k, v, /*bias=*/std::nullopt, query_begins, key_begins, sizes.most_queries, sizes.most_keys,
        /*dropout_p=*/0.0, kFromBottomRight, /*compute_log_sumexp=*/true, sizes.scale, /*seqlen_k=*/std::nullopt,
        sizes.keys_seen());
    const at::Tensor& out = std::get<0>(result);
    ctx->save_for_backward(
        {q, k, v, out, std::get<1>(result), query_begins, key_begins, std::get<2>(result), std::get<3>(result)});
    sizes.save(ctx);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto s = ctx->get_saved_variables();
    const DeterministicBackward fixed_order;
    const Sizes sizes = Sizes::saved(ctx);
    // One split of the keys adds each gradient in one order.
    const auto result = at::_efficient_attention_backward(
        grads[0].contiguous(), s[0], s[1], s[2], /*bias=*/std::nullopt, s[3], s[5], s[6], sizes.most_queries,
        sizes.most_keys, s[4], /*dropout_p=*/0.0, s[7], s[8], kFromBottomRight, /*bias_requires_grad=*/false,
        sizes.scale, /*num_splits_key=*/1, sizes.keys_seen());
    variable_list out{std::get<0>(result), std::get<1>(result), std::get<2>(result)};
    out.resize(6);
    return out;
  }
};

}  // namespace

bool has_cuda_attention(const at::Tensor& q_NHD, const AttentionShape& shape) {
  const int64_t dim = shape.head_dim;
  const bool takes_dtype = q_NHD.scalar_type() == at::kFloat || (shape.rounds && q_NHD.scalar_type() == at::kBFloat16);
  if (!q_NHD.is_cuda() || !takes_dtype) return false;
  return shape.softcap == 0.0 && !shape.sinks_A.defined() && dim % 8 == 0 && dim <= 256;
}

at::Tensor cuda_attention(const at::Tensor& q_NHD, const at::Tensor& k_MHD, const at::Tensor& v_MHD,
                          const SegmentLengths& given, const AttentionShape& shape) {
  SegmentLengths lengths = given;
  if (!lengths.query_begins.defined()) send_begins(lengths, q_NHD.device());
  const Sizes sizes{*std::ranges::max_element(lengths.queries), *std::ranges::max_element(lengths.keys), shape.window,
                    shape.scale};
  const at::Tensor q = q_NHD.contiguous(), k = k_MHD.contiguous(), v = v_MHD.contiguous();
  if (q.scalar_type() == at::kBFloat16)
    return FlashAttention::apply(q, k, v, lengths.query_begins, lengths.key_begins, sizes);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const auto repeated = [group](const at::Tensor& x) { return x.repeat_interleave(group, 1).unsqueeze(0); };
  return EfficientAttention::apply(q.unsqueeze(0), repeated(k), repeated(v), lengths.query_begins, lengths.key_begins,
                                   sizes)
      .squeeze(0);
}

}  // namespace mortise
