// The head's gradients after an earlier pass has computed every token's normaliser. A block of logits then becomes
// gradients in place, so a chunk takes a thousand tokens for any vocabulary. The one-pass mode must see all logits of a
// token first, and takes less than a hundred. This pass reads the weight and its gradient from memory that many times
// less.
//
// Cost: 6RHV flops and one exp per logit; no sums, no maxima. Memory: at most HeadOptions::chunk_bytes. The results do
// not depend on the number of threads. Private to this folder: head_backward calls it.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "model/head/log_prob_head.h"

namespace mortise {

struct SecondPassInput {
  const at::Tensor& hidden_RH;
  const VocabularyHead& head;
  const at::Tensor& targets_R;
  double temperature;
  std::span<const TokenNorm> norms;
  std::span<const double> grad_log_prob;
  std::span<const double> grad_entropy;  // empty: the loss does not depend on it
};

// d_hidden_RH is written, d_weight_VH added to; either may be undefined.
void head_second_pass(const SecondPassInput& input, const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH,
                      const HeadOptions& options);

}  // namespace mortise
