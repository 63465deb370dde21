// One core's pass over the memory of a loss: five inputs, two outputs.
#include "memory_pass.h"

namespace mortise {

void memory_pass(const float* __restrict log_prob, const float* __restrict old_log_prob,
                 const float* __restrict advantages, const float* __restrict weight, const uint8_t* __restrict mask,
                 float* __restrict loss, float* __restrict grad, int64_t num_tokens) {
  for (int64_t t = 0; t < num_tokens; ++t) {
    const float on = mask[t] != 0 ? 1.0F : 0.0F;
    loss[t] = on * (log_prob[t] + advantages[t]);
    grad[t] = on * (old_log_prob[t] + weight[t]);
  }
}

}  // namespace mortise
