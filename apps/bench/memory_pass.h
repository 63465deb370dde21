// The least that a token-local loss with gradient can take: one core reads its five inputs and writes its two outputs.
#pragma once

#include <cstdint>

namespace mortise {

// loss = log_prob + advantages, grad = old_log_prob + weight, where the mask is set, else 0: hardly any arithmetic.
void memory_pass(const float* log_prob, const float* old_log_prob, const float* advantages, const float* weight,
                 const uint8_t* mask, float* loss, float* grad, int64_t num_tokens);

}  // namespace mortise
