// RowSchedule: which entry of data.train_files each row of an epoch comes from.
//
// Without weights all entries are one list, in their order. With weights (data.train_weights), the row at place k comes
// from the entry that is furthest behind its share of the first k + 1 rows, so that each entry is within one row of its
// share in every batch. Random draws, as datasets' interleave_datasets makes, have these shares only on average.
//
// An epoch ends before the first row that an entry no longer has (kFirstExhausted), or as soon as all rows of all
// entries were given (kAllExhausted; smaller entries begin again). No random numbers; the same on every machine.
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/keys/data.h"
#include "foundation/base/result.h"

namespace mortise {

struct ScheduleSource {
  int64_t num_rows = 0;
  double weight = 1;
};

class RowSchedule {
 public:
  // Refuses sources without rows, and epochs of more than 10^10 rows.
  static Result<RowSchedule> create(const std::vector<ScheduleSource>& sources, StoppingStrategy stopping);

  [[nodiscard]] int64_t rows_per_epoch() const { return rows_per_epoch_; }
  [[nodiscard]] size_t num_sources() const { return sources_.size(); }
  [[nodiscard]] int64_t rows_of(size_t source) const { return sources_[source].num_rows; }

  // To the place before this row of an epoch.
  void go_to(int64_t row);
  // The source of the next row. Precondition: fewer than rows_per_epoch() calls since the epoch began.
  size_t next();
  // Rows of each source so far in the epoch.
  [[nodiscard]] std::span<const int64_t> counts() const { return counts_; }

 private:
  explicit RowSchedule(std::vector<ScheduleSource> sources);
  [[nodiscard]] size_t furthest_behind() const;
  void give(size_t source);
  [[nodiscard]] int64_t measure_epoch(StoppingStrategy stopping);

  std::vector<ScheduleSource> sources_;  // weights that sum to 1
  std::vector<double> behind_;           // share of the rows so far, less the rows given
  std::vector<int64_t> counts_;
  int64_t rows_per_epoch_ = 0;
};

}  // namespace mortise
