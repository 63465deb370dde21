// Computes the sum of squared probabilities in chunks of rows.
#include "model/head/squared_probs.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>

#include <algorithm>

#include "model/head/shared_vocabulary.h"

namespace mortise {

at::Tensor head_sum_pi_squared(const at::Tensor& hidden_RH, const VocabularyHead& own, double temperature) {
  const WholeHead whole(own);
  const VocabularyHead& head = whole.head();
  constexpr int64_t kChunkBytes = int64_t{8} << 20;
  const at::NoGradGuard no_grad;
  const int64_t num_rows = hidden_RH.size(0);
  const int64_t row_bytes = head.weight_VH.size(0) * static_cast<int64_t>(hidden_RH.element_size());
  const int64_t chunk = std::clamp<int64_t>(kChunkBytes / row_bytes, 1, std::max<int64_t>(1, num_rows));
  at::Tensor out_R = at::empty({num_rows}, hidden_RH.options());
  for (int64_t begin = 0; begin < num_rows; begin += chunk) {
    const int64_t rows = std::min(chunk, num_rows - begin);
    const at::Tensor z_CV = head_logits(hidden_RH.narrow(0, begin, rows), head).div_(temperature);
    const at::Tensor lse_C = at::logsumexp(z_CV, {1});
    out_R.narrow(0, begin, rows).copy_((at::logsumexp(z_CV.mul(2.0), {1}) - lse_C.mul(2.0)).exp_());
  }
  return out_R;
}

}  // namespace mortise
