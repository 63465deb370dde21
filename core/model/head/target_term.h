// A target's own part in the gradients of its log-prob, which both ways through the head add apart from the softmax's.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace mortise {

// d loss / d logit of a token's target through its own term. `target_logit` is the capped one; unread without a cap.
inline double target_slope(double grad_log_prob, double inverse_temperature, double softcap, double target_logit) {
  const double t = softcap > 0.0 ? target_logit / softcap : 0.0;
  return grad_log_prob * inverse_temperature * (1.0 - t * t);
}

// to += factor * from
template <class T>
void add_scaled(T factor, const T* from, int64_t size, T* to) {
  for (int64_t i = 0; i < size; ++i) to[i] += factor * from[i];
}

}  // namespace mortise
