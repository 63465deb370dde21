// What the losses share that choose among the update's tokens: an order of the rows, and, for clip_cov and kl_cov, each
// token's part of the covariance of advantage and log-prob over the update.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <mortise/cpp/losses.hpp>

namespace mortise {

// The rows in the order of their names. Choices use it, so that they do not depend on the order of the call.
inline std::vector<std::int64_t> rows_by_name(const LossBatch& batch) {
  std::vector<std::int64_t> order(std::size_t(batch.num_rows()));
  std::iota(order.begin(), order.end(), std::int64_t(0));
  const std::int64_t* id = batch.layout.row_id;
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return id[a] < id[b]; });
  return order;
}

class TokenCovariance {
 public:
  TokenCovariance(const LossBatch& batch, const Call& call) : batch_(batch) {
    const double tokens = batch.sum(call, [](std::int64_t) { return 1.0; });
    if (tokens == 0) return;
    num_tokens_ = std::int64_t(tokens);
    mean_advantage_ = batch.sum(call, [&](std::int64_t t) { return double(batch.advantages[t]); }) / tokens;
    mean_log_prob_ = batch.sum(call, [&](std::int64_t t) { return double(batch.log_prob[t]); }) / tokens;
  }

  std::int64_t num_tokens() const { return num_tokens_; }  // unmasked
  // The covariance of an unmasked token. NaN comes last in any order (and shows in the loss).
  double operator()(std::int64_t t) const {
    const double cov = (double(batch_.advantages[t]) - mean_advantage_) * (double(batch_.log_prob[t]) - mean_log_prob_);
    return std::isnan(cov) ? -std::numeric_limits<double>::infinity() : cov;
  }

 private:
  const LossBatch& batch_;
  std::int64_t num_tokens_ = 0;
  double mean_advantage_ = 0, mean_log_prob_ = 0;
};

}  // namespace mortise
