// Sum of the squared probabilities of the vocabulary per token: exp(lse(2z) - 2 lse(z)), z the logits over temperature.
// What the variance-optimal baseline needs (verl: sum_pi_squared). (Tokens x vocabulary) is never kept.
// Cost: 2RHV flops; one walk over a head of windows.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/head/log_prob_head.h"

namespace mortise {

at::Tensor head_sum_pi_squared(const at::Tensor& hidden_RH, const VocabularyHead& head, double temperature);

}  // namespace mortise
