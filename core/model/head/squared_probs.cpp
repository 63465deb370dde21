// Computes the sum of squared probabilities in blocks of tokens and columns.
#include "model/head/squared_probs.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <limits>

#include "model/head/head_products.h"
#include "model/head/shared_vocabulary.h"

namespace mortise {

namespace {

constexpr int64_t kRowsAtOnce = 1024;

// Adds the columns of `rows` to lse(z) and lse(2z) of each token, both_R2, block by block: in double on CPUs, where they are
// rounded as often as there are blocks. The same blocks of tokens and columns
// whoever has the rows, so that the sums have the same bits.
void add_columns(const at::Tensor& hidden_RH, const VocabularyHead& head, double temperature,
                 const at::Tensor& both_R2) {
  const int64_t all = head.weight_VH.size(0);
  const int64_t num = hidden_RH.size(0), columns = head.by_operators ? all : kHeadWindowRows;
  const int64_t at_once =
      head.by_operators ? std::max<int64_t>(1, kRowsAtOnce * kHeadWindowRows / columns) : kRowsAtOnce;
  for (int64_t first = 0; first < all; first += columns) {
    const VocabularyHead block = head_columns(head, first, std::min(columns, all - first));
    for (int64_t begin = 0; begin < num; begin += at_once) {
      const int64_t count = std::min(at_once, num - begin);
      const at::Tensor z_CV = head_logits(hidden_RH.narrow(0, begin, count), block).div_(temperature);
      const at::Tensor own_C2 = at::stack({at::logsumexp(z_CV, {1}), at::logsumexp(z_CV.mul(2.0), {1})}, 1);
      const at::Tensor sum_C2 = both_R2.narrow(0, begin, count);
      sum_C2.copy_(at::logaddexp(sum_C2, own_C2.to(sum_C2.scalar_type())));
    }
  }
}

}  // namespace

at::Tensor head_sum_pi_squared(const at::Tensor& hidden_RH, const VocabularyHead& head, double temperature) {
  const at::NoGradGuard no_grad;
  const auto dtype = head.by_operators ? hidden_RH.scalar_type() : at::kDouble;
  at::Tensor both_R2 =
      at::full({hidden_RH.size(0), 2}, -std::numeric_limits<double>::infinity(), hidden_RH.options().dtype(dtype));
  if (head.rows == nullptr)
    add_columns(hidden_RH, with_rounded_weight(head), temperature, both_R2);
  else
    head.rows->walk([&](int64_t first, const at::Tensor& rows) {
      const at::Tensor used = used_rows(head, first, rows);
      if (used.defined()) add_columns(hidden_RH, {used, head.softcap}, temperature, both_R2);
    });
  if (head.share != nullptr && both_R2.numel() > 0) both_R2 = at::logsumexp(of_all_ranks(*head.share, both_R2), {0});
  return (both_R2.select(1, 1) - both_R2.select(1, 0).mul(2.0)).exp_().to(hidden_RH.scalar_type());
}

}  // namespace mortise
