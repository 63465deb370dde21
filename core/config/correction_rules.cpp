// Parses the texts of [algorithm.rollout_correction].
#include "config/correction_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "foundation/base/suggest.h"
#include "foundation/base/text.h"

namespace mortise {

namespace {

constexpr std::string_view kTable = "algorithm.rollout_correction.";

Error bad(std::string_view key, std::string what, std::string next) {
  const std::string name = std::string(kTable) + std::string(key);
  return {ErrorKind::kConfig, fmt::format("{} {}", quote(name), what), name, std::move(next)};
}

struct Bounds {
  std::optional<double> lower;
  double upper = 0.0;
};

// "2.0", or "0.5_2.0" with the lower bound first.
Result<Bounds> parse_bounds(std::string_view key, std::string_view text) {
  const auto number = [](std::string_view part) -> std::optional<double> {
    const std::optional<double> value = parse_f64(part);
    return value && std::isfinite(*value) && *value > 0.0 ? value : std::nullopt;
  };
  const size_t split = text.find('_');
  Bounds bounds;
  std::optional<double> upper;
  if (split == std::string_view::npos) {
    upper = number(text);
  } else {
    bounds.lower = number(text.substr(0, split));
    upper = number(text.substr(split + 1));
  }
  if (!upper || (split != std::string_view::npos && !bounds.lower) || bounds.lower.value_or(0.0) > *upper) {
    return bad(
        key,
        fmt::format("has a bound {} that is not positive, or whose lower bound is above the upper one", quote(text)),
        "write an upper bound as 2.0, or both as \"0.5_2.0\"");
  }
  bounds.upper = *upper;
  return bounds;
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> items;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (const std::string_view item = trim(text.substr(0, comma)); !item.empty()) items.emplace_back(item);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return items;
}

struct RuleName {
  std::string_view name;
  RejectionRule::Over over;
  int estimator;
};
using enum RejectionRule::Over;
constexpr RuleName kRules[] = {
    {"token_k1", kToken, 1},   {"token_k2", kToken, 2}, {"token_k3", kToken, 3},   {"seq_sum_k1", kSum, 1},
    {"seq_sum_k2", kSum, 2},   {"seq_sum_k3", kSum, 3}, {"seq_mean_k1", kMean, 1}, {"seq_mean_k2", kMean, 2},
    {"seq_mean_k3", kMean, 3}, {"seq_max_k2", kMax, 2}, {"seq_max_k3", kMax, 3},
};

Result<RejectionRule> parse_rejection(const std::string& name, std::string_view bounds_text) {
  const auto* found = std::ranges::find(kRules, name, &RuleName::name);
  if (found == std::end(kRules)) {
    std::vector<std::string> names;
    for (const RuleName& rule : kRules) names.emplace_back(rule.name);
    return bad("rollout_rs", "names an unknown statistic, " + quote(name), suggest(name, names));
  }
  const Bounds bounds = TRY(parse_bounds("rollout_rs_threshold", bounds_text));
  RejectionRule rule{name, found->over, found->estimator, bounds.upper, std::nullopt};
  if (rule.estimator == 1) {
    // The config bounds a ratio; the statistic is its log.
    rule.lower = std::log(bounds.lower.value_or(1.0 / bounds.upper));
    rule.upper = std::log(bounds.upper);
    if (*rule.lower > rule.upper)
      return bad("rollout_rs_threshold", "is a single bound below 1, which would reject everything",
                 "write \"0.5_2.0\"");
  } else if (bounds.lower) {
    return bad("rollout_rs_threshold",
               fmt::format("has two bounds for {}, which is never negative and needs one", name),
               "write only the upper bound");
  }
  return rule;
}

Result<std::vector<RejectionRule>> parse_rejections(const RolloutCorrectionConfig& config) {
  std::vector<RejectionRule> rules;
  if (!config.rollout_rs) return rules;
  std::vector<std::string> names;
  for (std::string& name : split_list(*config.rollout_rs)) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  if (names.empty()) return bad("rollout_rs", "is empty", "name a statistic such as seq_mean_k3, or write null");
  if (!config.rollout_rs_threshold)
    return bad("rollout_rs_threshold", "is not set, but rollout_rs needs it",
               "give one bound, or one for each statistic");
  const std::vector<std::string> bounds = split_list(*config.rollout_rs_threshold);
  if (bounds.size() != 1 && bounds.size() != names.size()) {
    return bad("rollout_rs_threshold", fmt::format("has {} bounds for {} statistics", bounds.size(), names.size()),
               "give one bound, or one for each, separated by commas");
  }
  for (size_t i = 0; i < names.size(); ++i)
    rules.push_back(TRY(parse_rejection(names[i], bounds.size() == 1 ? bounds[0] : bounds[i])));
  return rules;
}

Result<std::optional<WeightRule>> parse_weights(const RolloutCorrectionConfig& config) {
  std::optional<WeightRule> rule;
  if (!config.rollout_is) return rule;
  rule.emplace();
  rule->level = *config.rollout_is;
  const Bounds bounds = TRY(parse_bounds("rollout_is_threshold", config.rollout_is_threshold));
  rule->upper = bounds.upper;
  rule->lower = bounds.lower;
  const OutsideWeights outside = config.rollout_is_outside;
  rule->zero_outside =
      outside == OutsideWeights::kMask || (outside == OutsideWeights::kAuto && bounds.lower.has_value());
  rule->batch_normalize = config.rollout_is_batch_normalize;
  return rule;
}

}  // namespace

Result<CorrectionRules> parse_correction_rules(const RolloutCorrectionConfig& config) {
  CorrectionRules out;
  out.weights = TRY(parse_weights(config));
  out.rejections = TRY(parse_rejections(config));
  return out;
}

}  // namespace mortise
