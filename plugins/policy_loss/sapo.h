// What sapo and sapo_sequence share: the temperatures of the gate, the aggregation and the metrics.
#pragma once

#include <string>

#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace mortise {

template <class Base>
struct SapoGate : Base {
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;  // the gradient is the true one
  static constexpr bool accepts_cuda = true;

  double tau_pos = Base::param("tau_pos", 1.0, "temperature of the gate where A > 0").above(0);
  double tau_neg = Base::param("tau_neg", 1.05, "temperature of the gate where A <= 0").above(0);
  std::string loss_agg_mode = own_aggregation(Base::param("loss_agg_mode", "seq-mean-token-mean", kAggregationDoc));

  enum { kNone, kKl };
  static constexpr Metric metrics[3] = {
      // nvcc needs the size in a template
      {kNone, "actor/pg_clipfrac", Average::kTokens},
      {kKl, "actor/ppo_kl", Average::kTokens},
      {kNone, "actor/pg_clipfrac_lower", Average::kTokens},
  };
};

}  // namespace mortise
