// Maximum, normaliser and entropy of one row of logits, or of a block of its columns: the kernel of head and sampler.
//
// With d = (logit - max) / temperature: sum = sum exp d, weighted = sum d exp d. Sums run in vector lanes over 2,048
// columns and are added in double, so log-probs are within 1e-6 of double for any vocabulary.
// Cost: two passes (maximum; exp and sums), vectorised, one CPU clone per instruction set. Logits may be -inf (never).
// Thread rule: pure functions; the caller spreads rows over threads.
#pragma once

#include <cstdint>

namespace mortise {

struct RowStats {
  double max = 0;       // largest logit, before the temperature
  double sum = 0;       // sum of exp((logit - max) / temperature), >= 1
  double weighted = 0;  // sum of d exp d, <= 0

  // log sum exp of logit / temperature.
  [[nodiscard]] double lse(double inverse_temperature) const;
  // log p of a column with this logit.
  [[nodiscard]] double log_prob(double logit, double inverse_temperature) const;
  [[nodiscard]] double entropy() const;  // nats

  // The stats of two column blocks of one row together.
  [[nodiscard]] RowStats merged(const RowStats& other, double inverse_temperature) const;
};

// Preconditions of all: size > 0, inverse_temperature > 0. `weighted` is always filled.
RowStats row_softmax_stats(const float* logits, int64_t size, double inverse_temperature);
RowStats row_softmax_stats(const double* logits, int64_t size, double inverse_temperature);

// The same, and logits[i] becomes exp((logit_i - max) / temperature), not normalised: p_i = logits[i] / sum.
RowStats row_softmax_exp_(float* logits, int64_t size, double inverse_temperature);
RowStats row_softmax_exp_(double* logits, int64_t size, double inverse_temperature);

// logits[i] becomes exp((logit_i - reference) / temperature), for a reference not far below the maximum.
void row_exp_(float* logits, int64_t size, double reference, double inverse_temperature);
void row_exp_(double* logits, int64_t size, double reference, double inverse_temperature);

// logits[i] becomes cap tanh(logits[i] / cap). Precondition: cap > 0.
void row_softcap_(float* logits, int64_t size, double cap);
void row_softcap_(double* logits, int64_t size, double cap);

// logits[i] becomes -p (g + gh (log p + H)) / temperature: the gradient of g * log_prob(target) + gh * entropy without
// the target's own g / temperature. `stats` are those of the whole row. With cap > 0 the logits are capped ones, and
// the result is the gradient of what they were before.
void row_softmax_grad_(float* logits, int64_t size, double inverse_temperature, const RowStats& stats,
                       double grad_log_prob, double grad_entropy, double cap = 0.0);
void row_softmax_grad_(double* logits, int64_t size, double inverse_temperature, const RowStats& stats,
                       double grad_log_prob, double grad_entropy, double cap = 0.0);

}  // namespace mortise
