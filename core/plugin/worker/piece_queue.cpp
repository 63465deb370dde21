// Cuts the parts of a batch into pieces, and hands them out in order.
#include "plugin/worker/piece_queue.h"

#include <fmt/core.h>
#include <algorithm>

#include "plugin/host/kinds/reward_args.h"
#include "plugin/worker/batch_area.h"

namespace mortise {

void PieceQueue::begin(int64_t num_rows) {
  num_rows_ = num_rows;
  waiting_.clear();
  first_area_ += static_cast<int64_t>(areas_.size());
  areas_.clear();
  arena_.reset();
}

Result<> PieceQueue::add(const RewardBatch& rows, Granularity granularity, int num_workers, const std::string& label) {
  TRY(check_reward_batch(rows, label));
  const RewardArgs args(rows);
  Area area;
  area.range = TRY(arena_.allocate(batch_bytes(args.in())));
  write_batch(args.in(), arena_.bytes(area.range));
  area.group_of = rows.group_index;
  const uint64_t* const offsets = args.in().completion_ids.offsets;
  area.token_offsets.assign(offsets, offsets + rows.num_rows + 1);
  for (int64_t i = 0; i < rows.num_rows; ++i) area.row_of.push_back(args.in().row_id[i]);
  for (const int64_t row : area.row_of) {
    if (row < 0 || row >= num_rows_)
      return Error{ErrorKind::kInternal, fmt::format("row {} is outside of its batch", row), label, ""};
  }
  areas_.push_back(std::move(area));
  cut(rows, granularity, num_workers);
  return {};
}

void PieceQueue::cut(const RewardBatch& rows, Granularity granularity, int num_workers) {
  const int64_t n = rows.num_rows, area = first_area_ + static_cast<int64_t>(areas_.size()) - 1;
  if (granularity == Granularity::kBatch || (granularity == Granularity::kGroup && rows.group_index.empty())) {
    if (n > 0) waiting_.push_back({area, 0, n});
    return;
  }
  if (granularity == Granularity::kRow) {
    const int64_t size = std::clamp<int64_t>(n / (4 * int64_t{num_workers}), 1, kMaxPieceRows);
    for (int64_t first = 0; first < n; first += size) waiting_.push_back({area, first, std::min(size, n - first)});
    return;
  }
  for (int64_t first = 0, end = 0; first < n; first = end) {
    const int64_t group = rows.group_index[static_cast<size_t>(first)];
    for (end = first; end < n && rows.group_index[static_cast<size_t>(end)] == group;) ++end;
    waiting_.push_back({area, first, end - first});
  }
}

RowPiece PieceQueue::take() {
  const RowPiece piece = waiting_.front();
  waiting_.pop_front();
  return piece;
}

}  // namespace mortise
