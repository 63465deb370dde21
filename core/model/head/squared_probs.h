// Sum of the squared probabilities of the vocabulary per token: exp(lse(2z) - 2 lse(z)), z the logits over temperature.
// What the variance-optimal baseline needs (verl: sum_pi_squared). Chunks of rows; (tokens x vocabulary) is never kept.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/head/log_prob_head.h"

namespace mortise {

at::Tensor head_sum_pi_squared(const at::Tensor& hidden_RH, const VocabularyHead& head, double temperature);

}  // namespace mortise
