// Normalizes each reward within its group, and adds the weighted results.
#include "experience/advantage/reward_aggregation.h"

#include <cmath>
#include <map>

namespace mortise {
namespace {

constexpr double kEpsilon = 1e-4;

// Adds one function's part to the rows of a group. Sums run over distances to the first value: equal rewards of any
// size leave exactly 0.
void add_group(const RewardColumn& column, const std::vector<size_t>& rows, std::vector<double>& sum) {
  std::vector<size_t> scored;
  for (const size_t row : rows) {
    if (!std::isnan(column.values[row])) scored.push_back(row);
  }
  if (scored.size() < 2) return;
  const double first = column.values[scored[0]];
  const auto count = static_cast<double>(scored.size());
  double distance = 0.0;
  for (const size_t row : scored) distance += column.values[row] - first;
  const double mean = first + distance / count;
  double square = 0.0;
  for (const size_t row : scored) square += (column.values[row] - mean) * (column.values[row] - mean);
  const double scale = std::sqrt(square / (count - 1.0)) + kEpsilon;
  for (const size_t row : scored) sum[row] += column.weight * (column.values[row] - mean) / scale;
}

}  // namespace

std::vector<double> normalize_then_sum(const std::vector<RewardColumn>& columns, std::span<const int64_t> group_index,
                                       std::span<const uint8_t> row_valid) {
  std::map<int64_t, std::vector<size_t>> groups;
  for (size_t row = 0; row < group_index.size(); ++row) {
    if (row_valid[row] != 0) groups[group_index[row]].push_back(row);
  }
  std::vector<double> sum(group_index.size(), 0.0);
  for (const RewardColumn& column : columns) {
    for (const auto& [group, rows] : groups) add_group(column, rows, sum);
  }
  return sum;
}

}  // namespace mortise
