// Computes importance weights and rejections for the tokens and rows of a batch.
#include "experience/correction/rollout_correction.h"

#include <algorithm>
#include <cmath>

#include "experience/correction/correction_metrics.h"

namespace mortise {

namespace {

constexpr double kMaxExponent = 20.0;
using enum RejectionRule::Over;

double estimate(int estimator, double log_ratio) {
  const double d = std::clamp(log_ratio, -kMaxExponent, kMaxExponent);
  if (estimator == 1) return -d;
  return estimator == 2 ? 0.5 * d * d : std::exp(d) - 1.0 - d;
}

// [N] the rule's statistic at every unmasked token; of the row where it is over rows.
std::vector<double> statistic_of(const RejectionRule& rule, const LogRatios& ratios, const MaskedRows& rows) {
  std::vector<double> out(ratios.mask.size(), 0.0);
  rows.for_tokens([&](size_t t) { out[t] = estimate(rule.estimator, ratios.log_ratio(t)); });
  if (rule.over == kToken) return out;
  for (size_t i = 0; i < static_cast<size_t>(rows.num_rows()); ++i) {
    double sum = 0.0, most = 0.0, count = 0.0;
    rows.for_row(i, [&](size_t t) {
      sum += out[t];
      most = std::max(most, out[t]);
      count += 1.0;
    });
    const double value = rule.over == kSum ? sum : rule.over == kMean ? sum / count : most;
    rows.for_row(i, [&](size_t t) { out[t] = value; });
  }
  return out;
}

std::vector<double> raw_weights(WeightLevel level, const LogRatios& ratios, const MaskedRows& rows) {
  std::vector<double> out(ratios.mask.size(), 0.0);
  const auto weight = [](double d) { return std::exp(std::clamp(d, -kMaxExponent, kMaxExponent)); };
  if (level == WeightLevel::kToken) {
    rows.for_tokens([&](size_t t) { out[t] = weight(ratios.log_ratio(t)); });
    return out;
  }
  for (size_t i = 0; i < static_cast<size_t>(rows.num_rows()); ++i) {
    double sum = 0.0, count = 0.0;
    rows.for_row(i, [&](size_t t) {
      sum += ratios.log_ratio(t);
      count += 1.0;
    });
    const double row = weight(level == WeightLevel::kSequence ? sum : sum / count);
    rows.for_row(i, [&](size_t t) { out[t] = row; });
  }
  return out;
}

std::vector<double> bounded_weights(const WeightRule& rule, std::span<const double> raw) {
  std::vector<double> out(raw.begin(), raw.end());
  for (double& weight : out) {
    const bool outside = weight > rule.upper || weight < rule.lower.value_or(0.0);
    if (!outside) continue;
    weight = rule.zero_outside ? 0.0 : std::clamp(weight, rule.lower.value_or(0.0), rule.upper);
  }
  return out;
}

// Makes the mean weight 1: over tokens, or over rows where a row has one weight.
void normalize(const WeightRule& rule, const MaskedRows& rows, std::span<double> weights, MetricSet* metrics) {
  const auto weight = [&](size_t t) { return weights[t]; };
  double mean = rows.token_mean(weight);
  if (rule.level != WeightLevel::kToken) {
    const std::vector<double> by_row = rows.row_means(weight);
    mean = 0.0;
    for (const double value : by_row) mean += value / static_cast<double>(by_row.size());
  }
  const double factor = mean > 1e-8 ? mean : 1.0;
  for (double& value : weights) value /= factor;
  if (metrics != nullptr) metrics->add("rollout_corr/rollout_is_batch_norm_factor", factor);
}

}  // namespace

Result<RolloutCorrection> RolloutCorrection::create(const RolloutCorrectionConfig& config) {
  RolloutCorrection out;
  CorrectionRules rules = TRY(parse_correction_rules(config));
  out.weights_ = rules.weights;
  out.rejections_ = std::move(rules.rejections);
  out.bypass_ = config.bypass_mode;
  out.reinforce_ = config.loss_type == BypassLoss::kReinforce;
  return out;
}

CorrectedBatch RolloutCorrection::apply(const LogRatios& ratios, MetricSet* metrics) const {
  CorrectedBatch out;
  out.mask.assign(ratios.mask.begin(), ratios.mask.end());
  const MaskedRows rows(ratios);
  if (weights_) out.weights.assign(ratios.mask.size(), 0.0F);
  if (rows.num_tokens() == 0) return out;
  if (weights_) {
    const std::vector<double> raw = raw_weights(weights_->level, ratios, rows);
    std::vector<double> weights = bounded_weights(*weights_, raw);
    if (metrics != nullptr) add_weight_metrics(ratios, rows, *weights_, raw, weights, *metrics);
    if (weights_->batch_normalize) normalize(*weights_, rows, weights, metrics);
    rows.for_tokens([&](size_t t) { out.weights[t] = static_cast<float>(weights[t]); });
  }
  for (const RejectionRule& rule : rejections_) {
    const std::vector<double> statistic = statistic_of(rule, ratios, rows);
    std::vector<uint8_t> keep(ratios.mask.size(), 1);
    rows.for_tokens([&](size_t t) {
      keep[t] = statistic[t] <= rule.upper && (!rule.lower || statistic[t] >= *rule.lower) ? 1 : 0;
      if (keep[t] == 0) out.mask[t] = 0;
    });
    if (metrics != nullptr) add_rejection_metrics(rows, rule, statistic, keep, *metrics);
  }
  if (!rejections_.empty() && metrics != nullptr) add_masked_fractions(rows, out.mask, "", *metrics);
  if (metrics != nullptr) add_off_policy_metrics(ratios, rows, *metrics);
  return out;
}

}  // namespace mortise
