// What clip_cov and kl_cov share: each token's part of the covariance of advantage and log-prob over the update.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include <mortise/cpp/losses.hpp>

namespace mortise {

struct TokenCovariance {
  double mean_advantage, mean_log_prob;
  // The covariance of an unmasked token. NaN comes last in any order (and shows in the loss).
  MORTISE_HD double operator()(const TokenColumns& in, std::int64_t t) const {
    const double cov = (double(in.advantages[t]) - mean_advantage) * (double(in.log_prob[t]) - mean_log_prob);
    return cov != cov ? -detail::kInfinity : cov;
  }
};

// Sums over the unmasked tokens.
struct UpdateSums {
  double tokens = 0, advantages = 0, log_probs = 0;

  struct Add {
    using Sums = UpdateSums;
    MORTISE_HD void operator()(const TokenColumns& in, std::int64_t t, UpdateSums& sums) const {
      sums.tokens += 1;
      sums.advantages += double(in.advantages[t]);
      sums.log_probs += double(in.log_prob[t]);
    }
  };
  template <class Passes>
  static UpdateSums of(const Passes& passes) {
    UpdateSums all;
    for (const UpdateSums& row : passes.row_sums(Add{})) {
      all.tokens += row.tokens;
      all.advantages += row.advantages;
      all.log_probs += row.log_probs;
    }
    return all;
  }
  TokenCovariance covariance() const {
    const double divisor = tokens > 0 ? tokens : 1;
    return {advantages / divisor, log_probs / divisor};
  }
};

}  // namespace mortise
