// Computes the rollout_corr/* metrics from weights, masks and log ratios.
#include "experience/correction/correction_metrics.h"

#include <fmt/core.h>
#include <algorithm>
#include <cmath>

namespace mortise {

namespace {

constexpr double kMaxLogRatio = 20.0;

double mean_of(std::span<const double> values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

// With n - 1; 0 for a single value.
double deviation_of(std::span<const double> values) {
  if (values.size() < 2) return 0.0;
  const double mean = mean_of(values);
  double sum = 0.0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double share_of(std::span<const double> values, const auto& is) {
  return values.empty() ? 0.0
                        : static_cast<double>(std::ranges::count_if(values, is)) / static_cast<double>(values.size());
}

class Reporter {
 public:
  Reporter(MetricSet& metrics, std::string prefix) : metrics_(metrics), prefix_("rollout_corr/" + std::move(prefix)) {}
  void operator()(const char* name, double value) const { metrics_.add(prefix_ + name, value); }

  // seq_mean, seq_std, seq_max, seq_min and the largest distance from `ideal`.
  void rows(std::span<const double> values, double ideal) const {
    (*this)("seq_mean", mean_of(values));
    (*this)("seq_std", deviation_of(values));
    (*this)("seq_max", std::ranges::max(values));
    (*this)("seq_min", std::ranges::min(values));
    double distance = 0.0;
    for (const double value : values) distance = std::max(distance, std::abs(value - ideal));
    (*this)("seq_max_deviation", distance);
  }

 private:
  MetricSet& metrics_;
  std::string prefix_;
};

// Standard deviation over tokens of `value`, which the caller has cut to its bounds.
template <class Value>
double token_deviation(const MaskedRows& rows, const Value& value) {
  if (rows.num_tokens() < 2) return 0.0;
  const double mean = rows.token_mean(value);
  const double square = rows.token_mean([&](size_t t) { return value(t) * value(t); });
  return std::sqrt(std::max(square - mean * mean, 0.0));
}

std::pair<double, double> token_range(const MaskedRows& rows, std::span<const double> values) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  rows.for_tokens([&](size_t t) {
    low = std::min(low, values[t]);
    high = std::max(high, values[t]);
  });
  return {low, high};
}

}  // namespace

MaskedRows::MaskedRows(const LogRatios& ratios) : mask_(ratios.mask) {
  for (size_t i = 0; i + 1 < ratios.row_offsets.size(); ++i) {
    const auto begin = static_cast<size_t>(ratios.row_offsets[i]), end = static_cast<size_t>(ratios.row_offsets[i + 1]);
    int64_t count = 0;
    for (size_t t = begin; t < end; ++t) count += mask_[t] != 0 ? 1 : 0;
    if (count > 0) rows_.push_back({begin, end, count});
    num_tokens_ += count;
  }
}

void add_off_policy_metrics(const LogRatios& ratios, const MaskedRows& rows, MetricSet& metrics) {
  const Reporter report(metrics, "");
  const auto ratio = [&](size_t t) { return ratios.log_ratio(t); };
  const std::vector<double> training = rows.row_means([&](size_t t) { return -static_cast<double>(ratios.policy[t]); });
  const std::vector<double> rollout = rows.row_means([&](size_t t) { return -static_cast<double>(ratios.sampler[t]); });
  std::vector<double> difference, training_ppl, rollout_ppl, ppl_ratio, distance, squared_weight;
  for (size_t i = 0; i < training.size(); ++i) {
    difference.push_back(training[i] - rollout[i]);
    distance.push_back(std::abs(difference.back()));
    training_ppl.push_back(std::exp(training[i]));
    rollout_ppl.push_back(std::exp(rollout[i]));
    ppl_ratio.push_back(std::exp(difference.back()));
    squared_weight.push_back(std::exp(2.0 * std::clamp(rows.row_sum(i, ratio), -kMaxLogRatio, kMaxLogRatio)));
  }
  report("training_ppl", mean_of(training_ppl));
  report("training_log_ppl", mean_of(training));
  report("rollout_ppl", mean_of(rollout_ppl));
  report("rollout_log_ppl", mean_of(rollout));
  report("kl", -rows.token_mean(ratio));
  report("k3_kl", rows.token_mean([&](size_t t) { return std::exp(ratio(t)) - ratio(t) - 1.0; }));
  report("log_ppl_diff", mean_of(difference));
  report("log_ppl_abs_diff", mean_of(distance));
  report("log_ppl_diff_max", std::ranges::max(difference));
  report("log_ppl_diff_min", std::ranges::min(difference));
  report("ppl_ratio", mean_of(ppl_ratio));
  report("chi2_token", rows.token_mean([&](size_t t) {
    return std::exp(2.0 * std::clamp(ratio(t), -kMaxLogRatio, kMaxLogRatio));
  }) - 1.0);
  report("chi2_seq", mean_of(squared_weight) - 1.0);
}

void add_weight_metrics(const LogRatios& ratios, const MaskedRows& rows, const WeightRule& rule,
                        std::span<const double> raw, std::span<const double> weights, MetricSet& metrics) {
  const Reporter report(metrics, "rollout_is_");
  const double upper = rule.upper, lower = rule.lower_or_default();
  const auto weight = [&](size_t t) { return weights[t]; };
  const auto share = [&](const auto& is) { return rows.token_mean([&](size_t t) { return is(raw[t]) ? 1.0 : 0.0; }); };
  report("mean", rows.token_mean(weight));
  if (rule.level == WeightLevel::kToken) {
    const auto [low, high] = token_range(rows, weights);
    report("max", high);
    report("min", low);
    report("ratio_fraction_high", share([&](double w) { return w > upper; }));
    report("ratio_fraction_low", share([&](double w) { return w < lower; }));
  } else {
    // By rows, and before any bound.
    std::vector<double> logs;
    for (size_t i = 0; i < static_cast<size_t>(rows.num_rows()); ++i)
      logs.push_back(rows.row_sum(i, [&](size_t t) { return ratios.log_ratio(t); }));
    if (rule.level == WeightLevel::kGeometric) logs = rows.row_means([&](size_t t) { return ratios.log_ratio(t); });
    report("max", std::exp(std::min(std::ranges::max(logs), kMaxLogRatio)));
    report("min", std::exp(std::ranges::min(logs)));
    report("ratio_fraction_high", share_of(logs, [&](double d) { return d > std::log(upper); }));
    report("ratio_fraction_low", share_of(logs, [&](double d) { return d < std::log(lower); }));
  }
  const auto cut = [&](size_t t) { return std::clamp(weights[t], 0.0, upper); };
  report("std", token_deviation(rows, cut));
  const double mean = rows.token_mean(cut) + 1e-8;
  const double square = rows.token_mean([&](size_t t) { return (cut(t) / mean) * (cut(t) / mean); });
  report("eff_sample_size", square > 0.0 ? 1.0 / square : 0.0);
  const std::vector<double> by_row = rows.row_means(weight);
  report.rows(by_row, 1.0);
  // TRL's names: what the loss is multiplied with, by rows where a row has one weight.
  const auto [least, most] = token_range(rows, weights);
  const std::string trl = "sampling/importance_sampling_ratio/";
  metrics.add_mean(trl + "mean", rule.level == WeightLevel::kToken ? rows.token_mean(weight) : mean_of(by_row), 1.0);
  metrics.add(trl + "min", least);
  metrics.add(trl + "max", most);
  const std::vector<double> raw_rows = rows.row_means([&](size_t t) { return raw[t]; });
  report("seq_fraction_high", share_of(raw_rows, [&](double w) { return w > upper; }));
  report("seq_fraction_low", share_of(raw_rows, [&](double w) { return w < lower; }));
  if (rule.zero_outside) {
    report("oob_ratio", share([&](double w) { return w > upper || (rule.lower && w < *rule.lower); }));
  }
}

void add_rejection_metrics(const MaskedRows& rows, const RejectionRule& rule, std::span<const double> statistic,
                           std::span<const uint8_t> keep, MetricSet& metrics) {
  const Reporter report(metrics, fmt::format("rollout_rs_{}_", rule.name));
  const auto value = [&](size_t t) { return statistic[t]; };
  const double lower = rule.lower.value_or(0.0);
  const std::vector<double> by_row = rows.row_means(value);
  const auto high = [&](double v) { return v > rule.upper; };
  const auto low = [&](double v) { return rule.lower && v < lower; };
  report("mean", rows.token_mean(value));
  if (rule.over == RejectionRule::Over::kToken) {
    const auto [least, most] = token_range(rows, statistic);
    report("max", most);
    report("min", least);
    report("fraction_high", rows.token_mean([&](size_t t) { return high(statistic[t]) ? 1.0 : 0.0; }));
    report("fraction_low", rows.token_mean([&](size_t t) { return low(statistic[t]) ? 1.0 : 0.0; }));
  } else {
    report("max", std::ranges::max(by_row));
    report("min", std::ranges::min(by_row));
    report("fraction_high", share_of(by_row, high));
    report("fraction_low", share_of(by_row, low));
  }
  // A lower bound above the upper one cannot be: create() refuses it.
  report("std", token_deviation(
                    rows, [&](size_t t) { return std::clamp(statistic[t], std::min(lower, rule.upper), rule.upper); }));
  report.rows(by_row, 0.0);
  report("seq_fraction_high", share_of(by_row, high));
  if (rule.lower) report("seq_fraction_low", share_of(by_row, low));
  add_masked_fractions(rows, keep, rule.name + "_", metrics);
}

void add_masked_fractions(const MaskedRows& rows, std::span<const uint8_t> keep, const std::string& prefix,
                          MetricSet& metrics) {
  const Reporter report(metrics, "rollout_rs_" + prefix);
  const auto rejected = [&](size_t t) { return keep[t] == 0 ? 1.0 : 0.0; };
  report("masked_fraction", rows.token_mean(rejected));
  double touched = 0.0;
  for (size_t i = 0; i < static_cast<size_t>(rows.num_rows()); ++i)
    touched += rows.row_sum(i, rejected) > 0 ? 1.0 : 0.0;
  report("seq_masked_fraction", touched / static_cast<double>(rows.num_rows()));
}

}  // namespace mortise
