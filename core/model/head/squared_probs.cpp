// Computes the sum of squared probabilities in chunks of rows.
#include "model/head/squared_probs.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <optional>

#include "model/head/shared_vocabulary.h"

namespace mortise {

namespace {

// lse(z) and lse(2z) of each row in the columns of a rank, [C, 2], become those of all columns.
at::Tensor lse_of_all_ranks(const VocabularyShare& share, const at::Tensor& own_C2) {
  return at::logsumexp(of_all_ranks(share, own_C2.contiguous()), {0});
}

}  // namespace

at::Tensor head_sum_pi_squared(const at::Tensor& hidden_RH, const VocabularyHead& given, double temperature) {
  constexpr int64_t kChunkBytes = int64_t{8} << 20;
  const at::NoGradGuard no_grad;
  std::optional<WholeHead> gathered;  // the sums need all logits of a token
  if (given.rows != nullptr) gathered.emplace(given);
  const VocabularyHead& head = gathered ? gathered->head() : given;
  const int64_t num_rows = hidden_RH.size(0);
  const int64_t columns = head.share != nullptr ? head.share->most : head.weight_VH.size(0);  // on all ranks alike
  const int64_t row_bytes = columns * static_cast<int64_t>(hidden_RH.element_size());
  const int64_t chunk = std::clamp<int64_t>(kChunkBytes / row_bytes, 1, std::max<int64_t>(1, num_rows));
  at::Tensor out_R = at::empty({num_rows}, hidden_RH.options());
  for (int64_t begin = 0; begin < num_rows; begin += chunk) {
    const int64_t rows = std::min(chunk, num_rows - begin);
    const at::Tensor z_CV = head_logits(hidden_RH.narrow(0, begin, rows), head).div_(temperature);
    at::Tensor lse_C = at::logsumexp(z_CV, {1}), lse2_C = at::logsumexp(z_CV.mul(2.0), {1});
    if (head.share != nullptr) {
      const at::Tensor both_C2 = lse_of_all_ranks(*head.share, at::stack({lse_C, lse2_C}, 1));
      lse_C = both_C2.select(1, 0);
      lse2_C = both_C2.select(1, 1);
    }
    out_R.narrow(0, begin, rows).copy_((lse2_C - lse_C.mul(2.0)).exp_());
  }
  return out_R;
}

}  // namespace mortise
