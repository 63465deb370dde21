// The head's gradients when an earlier pass has told every token's normaliser: a block of logits becomes gradients
// where it lies, so that a chunk takes a thousand tokens at any vocabulary. The one-pass mode, which must see all
// logits of a token first, takes under a hundred. The weight and its gradient are read from memory as many times less.
//
// Cost: 6RHV flops and one exp per logit; no sums, no maxima. Memory: HeadOptions::chunk_bytes at most. The results do
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
