// See row_schedule.h.
#include "experience/data/row_schedule.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace mortise {

namespace {
constexpr double kMostEpochRows = 1e10;
}

RowSchedule::RowSchedule(std::vector<ScheduleSource> sources)
    : sources_(std::move(sources)), behind_(sources_.size()), counts_(sources_.size()) {
  double sum = 0;
  for (const ScheduleSource& source : sources_) sum += source.weight;
  for (ScheduleSource& source : sources_) source.weight /= sum;
}

Result<RowSchedule> RowSchedule::create(const std::vector<ScheduleSource>& sources, StoppingStrategy stopping) {
  RowSchedule schedule(sources);
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].num_rows == 0) {
      return Error{ErrorKind::kData, fmt::format("entry {} of data.train_files has no rows to draw from", i + 1),
                   "data.train_weights", "remove the entry and its weight, or correct its rows"};
    }
    if (static_cast<double>(sources[i].num_rows) / schedule.sources_[i].weight > kMostEpochRows) {
      return Error{
          ErrorKind::kConfig,
          fmt::format("with these weights, an epoch over entry {} of data.train_files has more than 10^10 rows", i + 1),
          "data.train_weights", "raise its weight"};
    }
  }
  schedule.rows_per_epoch_ = schedule.measure_epoch(stopping);
  return schedule;
}

size_t RowSchedule::furthest_behind() const {
  size_t best = 0;
  for (size_t i = 1; i < sources_.size(); ++i) {
    if (behind_[i] + sources_[i].weight > behind_[best] + sources_[best].weight) best = i;
  }
  return best;
}

void RowSchedule::give(size_t source) {
  for (size_t i = 0; i < sources_.size(); ++i) behind_[i] += sources_[i].weight;
  behind_[source] -= 1;
  ++counts_[source];
}

int64_t RowSchedule::measure_epoch(StoppingStrategy stopping) {
  if (sources_.size() == 1) return sources_[0].num_rows;
  size_t num_unfinished = sources_.size();
  int64_t rows = 0;
  while (num_unfinished > 0) {
    const size_t source = furthest_behind();
    if (stopping == StoppingStrategy::kFirstExhausted && counts_[source] == sources_[source].num_rows) break;
    give(source);
    ++rows;
    if (counts_[source] == sources_[source].num_rows) --num_unfinished;
  }
  go_to(0);
  return rows;
}

void RowSchedule::go_to(int64_t row) {
  std::ranges::fill(behind_, 0);
  std::ranges::fill(counts_, 0);
  if (sources_.size() == 1) {
    counts_[0] = row;
    return;
  }
  for (int64_t i = 0; i < row; ++i) give(furthest_behind());
}

size_t RowSchedule::next() {
  const size_t source = sources_.size() == 1 ? 0 : furthest_behind();
  if (sources_.size() == 1)
    ++counts_[0];
  else
    give(source);
  return source;
}

}  // namespace mortise
