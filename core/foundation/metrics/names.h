// The one table of every number that the engine reports: name, unit, meaning, and reduction.
//
// If verl or TRL has a name, it is the name here, so that dashboards keep working. A name may be a pattern: `{name}`
// matches one or more characters without '/', and `{any}` matches the rest of the name. Docs and checks are made from
// this table.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace mortise {

// How two parts of one number become one. A mean is weighted: sum of sums over sum of weights.
enum class Reduction { kMean, kSum, kMax, kMin, kLast };

struct MetricInfo {
  std::string_view pattern;
  std::string_view unit;  // "", "s", "ms", "tokens", "nats", "GiB", "tokens/s", "fraction", "updates"
  std::string_view meaning;
  Reduction reduction;
};

[[nodiscard]] std::span<const MetricInfo> metric_table();

// The first row whose pattern fits, exact names before patterns; null for a name the engine does not know.
[[nodiscard]] const MetricInfo* find_metric(std::string_view name);

[[nodiscard]] bool metric_pattern_matches(std::string_view pattern, std::string_view name);
[[nodiscard]] std::string_view reduction_name(Reduction reduction);

}  // namespace mortise
