// See two_heads.h.
#include "model/head/two_heads.h"

namespace mortise {

int64_t two_heads_row_bytes(int64_t width, int64_t vocab, int64_t element_bytes) {
  return (2 * vocab + num_column_blocks(vocab, kPairBlockColumns) * width) * element_bytes;
}

int64_t two_heads_bytes(int64_t num_rows, int64_t width, int64_t vocab, int64_t element_bytes,
                        const HeadOptions& options) {
  const int64_t row_bytes = two_heads_row_bytes(width, vocab, element_bytes);
  return head_chunk_rows(num_rows, row_bytes, kPairChunkRows, options) * row_bytes;
}

void check_two_heads(const HeadSide& policy, const HeadSide& other, size_t num_weights, double temperature,
                     const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH) {
  const int64_t num = policy.hidden_RH.size(0);
  for (const HeadSide* side : {&policy, &other}) {
    const at::Tensor &hidden = side->hidden_RH, &weight = side->head.weight_VH;
    TORCH_CHECK(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1), "two heads: shapes");
    TORCH_CHECK(hidden.is_contiguous() && weight.is_contiguous(), "two heads: not contiguous");
    TORCH_CHECK(hidden.scalar_type() == policy.hidden_RH.scalar_type() && weight.scalar_type() == hidden.scalar_type(),
                "two heads: dtypes differ");
  }
  TORCH_CHECK(other.hidden_RH.size(0) == num && static_cast<int64_t>(num_weights) == num, "two heads: tokens");
  TORCH_CHECK(other.head.weight_VH.size(0) == policy.head.weight_VH.size(0), "two heads: vocabularies differ");
  TORCH_CHECK(temperature > 0.0, "two heads: temperature");
  TORCH_CHECK(
      !d_hidden_RH.defined() || (d_hidden_RH.is_contiguous() && d_hidden_RH.sizes() == policy.hidden_RH.sizes()),
      "two heads: d_hidden");
  TORCH_CHECK(
      !d_weight_VH.defined() || (d_weight_VH.is_contiguous() && d_weight_VH.sizes() == policy.head.weight_VH.sizes()),
      "two heads: d_weight");
}

}  // namespace mortise
