// mu of sft_mix, the share of the supervised loss. After `unit` updates (or steps, actor.optim.schedule_unit):
//   unit < warm-up        mu_peak unit / warm-up
//   then, for the decay   mu_valley + (mu_peak - mu_valley) (1 + cos(pi (unit - warm-up) / decay)) / 2
//   then                  mu_valley
// as ms-swift and Trinity-RFT compute it for CHORD (arXiv 2508.11408). Pure function.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "config/run_config.h"

namespace mortise {

inline double sft_mix_mu(const SftMixConfig& mix, int64_t unit) {
  const int64_t warmup = mix.mu_warmup_steps, decay = mix.mu_decay_steps;
  if (unit < warmup) return static_cast<double>(unit) / static_cast<double>(warmup) * mix.mu_peak;
  if (unit - warmup >= decay) return mix.valley();
  const double done = static_cast<double>(unit - warmup) / static_cast<double>(decay);
  return (mix.mu_peak - mix.valley()) * 0.5 * (1.0 + std::cos(std::numbers::pi * done)) + mix.valley();
}

}  // namespace mortise
