// See operators.h.
#include "model/layers/operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sin.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "model/device/kernel_table.h"
#include "model/layers/attention_choice.h"
#include "model/layers/experts.h"
#include "model/layers/gated.h"
#include "model/layers/rms_norm.h"

namespace mortise {
namespace {

std::pair<at::Tensor, at::Tensor> add_rms_norm_operators(const at::Tensor& x_NH, const at::Tensor& residual_NH,
                                                         const at::Tensor& weight_H, double eps) {
  const at::Tensor sum = x_NH + residual_NH;
  return {sum, rms_norm_plain(sum, weight_H, eps)};
}

// The sequences of the segments: a segment's queries, and the keys of its prompt and its own, end to end. Split and cat are
// each one operation with one gradient, and autograd adds the parts of a shared prompt in a fixed order.
at::Tensor rope_attention_operators(const at::Tensor& qkv_NQ, const PassSegments& segments,
                                    const at::Tensor& positions_N, const RopeTable& table, const AttentionShape& shape,
                                    const std::function<void(const at::Tensor&)>& on_qkv) {
  const int64_t hq = shape.num_heads, hk = shape.num_kv_heads, dim = shape.head_dim;
  const at::Tensor qkv = rope_rotate_plain(qkv_NQ, positions_N, table, hq + hk, dim);
  if (on_qkv) on_qkv(qkv);
  const int64_t* const data = segments.rows_S4.const_data_ptr<int64_t>();
  const SegmentLengths& lengths = segments.lengths;
  TORCH_CHECK(lengths.query_begins.defined(), "the pass has not sent where its sequences begin");
  at::Tensor kv = qkv.narrow(1, hq * dim, 2 * hk * dim);
  if (lengths.keys != lengths.queries) {
    const std::vector<at::Tensor> own = kv.split_with_sizes(lengths.queries);
    std::vector<at::Tensor> parts;
    for (size_t s = 0; s < own.size(); ++s) {
      const int64_t prefix = data[s * 4 + 2];
      if (prefix >= 0) parts.push_back(own[static_cast<size_t>(prefix)]);
      parts.push_back(own[s]);
    }
    kv = at::cat(parts, 0);
  }
  const auto heads = [dim](const at::Tensor& rows, int64_t first, int64_t count) {
    return rows.narrow(1, first * dim, count * dim).reshape({rows.size(0), count, dim});
  };
  return training_attention(heads(qkv, 0, hq), heads(kv, 0, hk), heads(kv, hk, hk), lengths, shape)
      .reshape({qkv.size(0), hq * dim});
}

}  // namespace

RopeTable token_rope_table(const RopeConfig& rope, int64_t head_dim, const at::Tensor& positions_N, int64_t length,
                           at::ScalarType dtype) {
  const std::vector<double> frequencies = rope_inverse_frequencies(rope, head_dim, length);
  const at::Tensor host = at::empty({static_cast<int64_t>(frequencies.size())}, at::kDouble);
  std::copy(frequencies.begin(), frequencies.end(), host.mutable_data_ptr<double>());
  const at::Tensor angles = positions_N.to(at::kDouble).unsqueeze(1) * sent_to(positions_N.device(), host);
  return {(at::cos(angles) * rope.attention_factor).to(dtype), (at::sin(angles) * rope.attention_factor).to(dtype)};
}

const LayerCode& operator_layers() {
  static const LayerCode code = {rms_norm_plain, add_rms_norm_operators, qk_norm_plain, rope_attention_operators,
                                 gated_plain,    mixture_operators};
  return code;
}

}  // namespace mortise
