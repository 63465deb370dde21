// See operator_pair.h.
#include "model/head/operator_pair.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>

#include "model/head/chunks.h"
#include "model/head/head_products.h"

namespace mortise::by_operators {
namespace {

constexpr int64_t kMostRows = 512;

// The divergences of some tokens [C, 1] in float64, and the gradient of each by the logits over temperature, [C, V].
struct PairTerms {
  at::Tensor value, gradient;
};

at::Tensor expectation(const at::Tensor& probs, const at::Tensor& values) {
  return at::sum(probs * values, {1}, /*keepdim=*/true, at::kDouble);
}

// p of the policy, q of the teacher.
PairTerms pair_terms(const at::Tensor& log_p, const at::Tensor& log_q, double beta) {
  const at::Tensor p = at::exp(log_p);
  if (beta >= 1.0) {
    const at::Tensor gap = log_p - log_q, value = expectation(p, gap);
    return {value, p * (gap - value.to(gap.scalar_type()))};
  }
  const at::Tensor q = at::exp(log_q);
  if (beta <= 0.0) return {expectation(q, log_q - log_p), p - q};
  const at::Tensor log_m = at::logaddexp(log_q + std::log(beta), log_p + std::log1p(-beta));
  const at::Tensor gap = log_p - log_m, mean = expectation(p, gap);
  return {expectation(q, log_q - log_m) * beta + mean * (1.0 - beta),
          p * (gap - mean.to(gap.scalar_type())) * (1.0 - beta)};
}

}  // namespace

std::vector<double> head_divergence(const HeadSide& policy, const HeadSide& teacher, double beta, double temperature,
                                    std::span<const double> weight_R, const at::Tensor& d_hidden_RH,
                                    const at::Tensor& d_weight_VH, const HeadOptions& options) {
  const at::NoGradGuard no_grad;
  const int64_t num = policy.hidden_RH.size(0), vocab = policy.head.weight_VH.size(0);
  const int64_t row_bytes = 8 * vocab * static_cast<int64_t>(policy.hidden_RH.element_size());
  const int64_t chunk = head_chunk_rows(num, row_bytes, kMostRows, options);
  const double cap = policy.head.softcap;
  const VocabularyHead own = with_rounded_weight(policy.head), other = with_rounded_weight(teacher.head);
  std::vector<double> out;
  for (int64_t begin = 0; begin < num; begin += chunk) {
    const int64_t count = std::min(chunk, num - begin);
    const at::Tensor rows = policy.hidden_RH.narrow(0, begin, count), inputs = head_inputs(rows, own);
    const at::Tensor capped = head_logits(inputs, own);
    const at::Tensor log_p = at::log_softmax(capped / temperature, 1);
    const at::Tensor log_q =
        at::log_softmax(head_logits(teacher.hidden_RH.narrow(0, begin, count), other) / temperature, 1);
    const PairTerms terms = pair_terms(log_p, log_q, beta);
    const at::Tensor values = terms.value.to(at::kCPU).contiguous();
    out.insert(out.end(), values.const_data_ptr<double>(), values.const_data_ptr<double>() + count);
    const std::span<const double> weights = weight_R.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    if (!any_nonzero(weights) || (!d_hidden_RH.defined() && !d_weight_VH.defined())) {
      if (d_hidden_RH.defined()) d_hidden_RH.narrow(0, begin, count).zero_();
      continue;
    }
    const at::Tensor host = at::empty({count, 1}, at::kDouble);
    std::ranges::copy(weights, host.mutable_data_ptr<double>());
    const at::Tensor factor = host.to(rows.device()) / temperature;
    at::Tensor dz = terms.gradient * factor.to(rows.scalar_type());
    if (cap > 0.0) dz = dz * (1.0 - (capped / cap).square());
    dz.masked_fill_(factor.eq(0.0), 0.0);  // and not 0 times what may not be finite
    const at::Tensor d_rows = d_hidden_RH.defined() ? d_hidden_RH.narrow(0, begin, count).zero_() : d_hidden_RH;
    add_head_gradients(dz, inputs, own, d_rows, d_weight_VH);
  }
  return out;
}

}  // namespace mortise::by_operators
