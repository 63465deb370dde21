// The rollout_corr/* numbers, by verl's names. Private to this folder.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "experience/correction/rollout_correction.h"

namespace mortise {

// Values over the unmasked tokens of a batch, and over its rows that have any.
class MaskedRows {
 public:
  explicit MaskedRows(const LogRatios& ratios);

  [[nodiscard]] int64_t num_rows() const { return static_cast<int64_t>(rows_.size()); }
  [[nodiscard]] int64_t num_tokens() const { return num_tokens_; }

  // visit(t) for every unmasked token.
  template <class Visit>
  void for_tokens(const Visit& visit) const {
    for (size_t i = 0; i < rows_.size(); ++i) for_row(i, visit);
  }
  // The same for the i-th row that has any.
  template <class Visit>
  void for_row(size_t i, const Visit& visit) const {
    for (size_t t = rows_[i].begin; t < rows_[i].end; ++t) {
      if (mask_[t] != 0) visit(t);
    }
  }
  // sum over tokens of value(t) / number of tokens; 0 without tokens.
  template <class Value>
  [[nodiscard]] double token_mean(const Value& value) const {
    double sum = 0.0;
    for_tokens([&](size_t t) { sum += value(t); });
    return num_tokens_ == 0 ? 0.0 : sum / static_cast<double>(num_tokens_);
  }
  template <class Value>
  [[nodiscard]] double row_sum(size_t i, const Value& value) const {
    double sum = 0.0;
    for_row(i, [&](size_t t) { sum += value(t); });
    return sum;
  }
  // [num_rows()] row_sum over the row's tokens.
  template <class Value>
  [[nodiscard]] std::vector<double> row_means(const Value& value) const {
    std::vector<double> means;
    for (size_t i = 0; i < rows_.size(); ++i) means.push_back(row_sum(i, value) / static_cast<double>(rows_[i].count));
    return means;
  }

 private:
  struct Row {
    size_t begin, end;
    int64_t count;
  };
  std::vector<Row> rows_;
  std::span<const uint8_t> mask_;
  int64_t num_tokens_ = 0;
};

// kl, perplexities, chi2: how far the sampler is from the policy.
void add_off_policy_metrics(const LogRatios& ratios, const MaskedRows& rows, MetricSet& metrics);

// rollout_is_*. `raw` before the bounds, `weights` after them.
void add_weight_metrics(const LogRatios& ratios, const MaskedRows& rows, const WeightRule& rule,
                        std::span<const double> raw, std::span<const double> weights, MetricSet& metrics);

// rollout_rs_NAME_*: `statistic` [N] is the row's at each of its tokens where the rule is over rows.
void add_rejection_metrics(const MaskedRows& rows, const RejectionRule& rule, std::span<const double> statistic,
                           std::span<const uint8_t> keep, MetricSet& metrics);

// rollout_rs_PREFIXmasked_fraction and ..seq_masked_fraction: tokens rejected, and rows that lost one.
void add_masked_fractions(const MaskedRows& rows, std::span<const uint8_t> keep, const std::string& prefix,
                          MetricSet& metrics);

}  // namespace mortise
