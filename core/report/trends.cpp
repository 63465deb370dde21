// Computes means and scatter of the windows.
#include "report/trends.h"

#include <algorithm>
#include <cmath>

namespace mortise {

size_t window_of(const MetricSeries& series) { return std::max<size_t>(1, series.size() / 5); }

std::optional<Ends> ends_of(const RunHistory& run, std::string_view metric) {
  const MetricSeries* series = run.find(metric);
  if (series == nullptr || series->size() < kFewestSteps) return {};
  const size_t window = window_of(*series);
  const Ends ends{mean_of(*series, 0, window), mean_of(*series, series->size() - window, series->size())};
  if (std::isnan(ends.first) || std::isnan(ends.last)) return {};
  return ends;
}

double chance_of(const MetricSeries& series) {
  double squares = 0.0;
  for (size_t i = 1; i < series.size(); ++i) {
    const double change = series[i].value - series[i - 1].value;
    if (std::isfinite(change)) squares += change * change;
  }
  const double variance = squares / (2.0 * static_cast<double>(std::max<size_t>(1, series.size() - 1)));
  return 2.0 * std::sqrt(2.0 * variance / static_cast<double>(window_of(series)));
}

std::optional<double> recent(const RunHistory& run, std::string_view metric) {
  const MetricSeries* series = run.find(metric);
  if (series == nullptr || series->empty()) return {};
  const double value = mean_of(*series, series->size() - window_of(*series), series->size());
  return std::isnan(value) ? std::optional<double>() : value;
}

}  // namespace mortise
