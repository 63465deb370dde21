// See two_heads.h.
#include "model/head/two_heads.h"

#include "model/head/shared_vocabulary.h"

namespace mortise {

int64_t two_heads_row_bytes(int64_t width, int64_t vocab, int64_t element_bytes) {
  return (2 * vocab + num_column_blocks(vocab, kPairBlockColumns) * width) * element_bytes;
}

int64_t two_heads_bytes(int64_t num_rows, int64_t width, int64_t vocab, int64_t element_bytes, int64_t columns,
                        const HeadOptions& options) {
  const int64_t row_bytes = two_heads_row_bytes(width, vocab, element_bytes);
  return head_chunk_rows(num_rows, row_bytes, kPairChunkRows, options) *
         two_heads_row_bytes(width, columns, element_bytes);
}

namespace {

// These rows of a matrix, as far as it has them.
at::Tensor rows_of(const at::Tensor& matrix, int64_t first, int64_t count) {
  const int64_t begin = std::min(first, matrix.size(0));
  return matrix.narrow(0, begin, std::min(count, matrix.size(0) - begin));
}

}  // namespace

PairWalks::Use PairWalks::of_used_rows(const Use& use) const {
  return [this, use](int64_t first, const at::Tensor& rows, const at::Tensor& other_rows, const at::Tensor& d_rows) {
    const at::Tensor used = used_rows(*policy_, first, rows);
    if (!used.defined()) return;
    const int64_t count = used.size(0);
    use(first, used, other_rows.narrow(0, 0, count), d_rows.defined() ? d_rows.narrow(0, 0, count) : d_rows);
  };
}

void PairWalks::walk(const Use& use_window) const {
  const Use use = of_used_rows(use_window);
  if (policy_->rows == nullptr) {
    other_->rows->walk([&](int64_t first, const at::Tensor& rows) {
      use(first, rows_of(policy_->weight_VH, first, rows.size(0)), rows, {});
    });
  } else if (other_->rows == nullptr) {
    policy_->rows->walk([&](int64_t first, const at::Tensor& rows) {
      use(first, rows, rows_of(other_->weight_VH, first, rows.size(0)), {});
    });
  } else {
    TORCH_CHECK(policy_->rows->partner() == other_->rows, "two heads: windows of heads that are no pair");
    policy_->rows->walk_with_partner(
        [&](int64_t first, const at::Tensor& rows, const at::Tensor& other_rows) { use(first, rows, other_rows, {}); });
  }
}

void PairWalks::walk_back(const Use& use_window) const {
  if (policy_->rows == nullptr) {
    walk([&](int64_t first, const at::Tensor& rows, const at::Tensor& other_rows, const at::Tensor&) {
      use_window(first, rows, other_rows,
                 d_weight_VH_.defined() ? d_weight_VH_.narrow(0, first, rows.size(0)) : at::Tensor());
    });
    return;
  }
  const Use use = of_used_rows(use_window);
  if (other_->rows == nullptr) {
    policy_->rows->walk_back([&](int64_t first, const at::Tensor& rows, const at::Tensor& d_rows) {
      use(first, rows, rows_of(other_->weight_VH, first, rows.size(0)), d_rows);
    });
  } else {
    policy_->rows->walk_back_with_partner(use);
  }
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
