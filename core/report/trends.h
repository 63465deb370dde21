// Trends: how a metric's series begins and ends, and how far chance alone moves it. What the rules of diagnosis.cpp are
// made of. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "report/history.h"

namespace mortise {

inline constexpr size_t kFewestSteps = 5;  // below, a beginning and an end cannot be told apart

// Means over the first and the last fifth.
struct Ends {
  double first = 0.0, last = 0.0;
};

// A fifth of the series, at least one step.
[[nodiscard]] size_t window_of(const MetricSeries& series);
// Nothing without the metric, or with fewer than kFewestSteps.
[[nodiscard]] std::optional<Ends> ends_of(const RunHistory& run, std::string_view metric);
// How far chance alone moves the difference of two windows: two standard errors, by the scatter from step to step.
[[nodiscard]] double chance_of(const MetricSeries& series);
// The mean over the last fifth; nothing without the metric. Works from the first step on.
[[nodiscard]] std::optional<double> recent(const RunHistory& run, std::string_view metric);

}  // namespace mortise
