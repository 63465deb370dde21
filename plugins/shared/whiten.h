// Numbers per token of a whole step, and their whitening.
#pragma once

#include <mortise/cpp/advantage.hpp>

namespace mortise {

// x = (x - mean) / sqrt(variance + epsilon), with mean and variance (n - 1) over the unmasked tokens of rows that have
// a reward. Each token counts once, so long rows weigh more. All cells are shifted and scaled, also masked ones, as in
// verl's masked_whiten. A single token becomes 0; without tokens nothing changes. x: [N].
inline void whiten(const AdvantageBatch& batch, std::vector<double>& x, double epsilon) {
  const auto each = [&](auto&& visit) {
    for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
      const auto mask = batch.mask(row);
      if (mask.empty() || !batch.has_score(row)) continue;
      for (std::int64_t t = 0; t < mask.size(); ++t) {
        if (mask[t] != 0) visit(x[std::size_t(batch.row_begin(row) + t)]);
      }
    }
  };
  double first = 0, sum = 0, count = 0;
  each([&](double value) {
    if (count == 0) first = value;
    sum += value - first;  // equal numbers leave exactly 0
    ++count;
  });
  if (count == 0) return;
  const double mean = first + sum / count;
  double square = 0;
  each([&](double value) { square += (value - mean) * (value - mean); });
  const double scale = 1 / std::sqrt((count > 1 ? square / (count - 1) : 0.0) + epsilon);
  for (double& value : x) value = value == mean ? 0.0 : (value - mean) * scale;
}

// The row's cells of x.
inline Span<double> row_of(const AdvantageBatch& batch, std::vector<double>& x, std::int64_t row) {
  return {x.data() + batch.row_begin(row), batch.mask(row).size()};
}

inline void store(Span<double> from, Span<float> to) {
  for (std::int64_t t = 0; t < to.size(); ++t) to[t] = float(from[t]);
}
// The same with 0 at masked tokens.
inline void store(Span<double> from, Span<const std::uint8_t> mask, Span<float> to) {
  for (std::int64_t t = 0; t < to.size(); ++t) to[t] = mask[t] != 0 ? float(from[t]) : 0.0F;
}

}  // namespace mortise
