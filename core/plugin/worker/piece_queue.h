// The rows of a batch on their way to the workers: written into shared memory, split into pieces, waiting for a worker.
// Cost: one copy of the columns; a few descriptors, for any number of parts. Threading: plain value.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "plugin/host/kinds/reward.h"
#include "plugin/worker/row_arena.h"
#include "plugin/worker/system.h"

namespace mortise {

inline constexpr int64_t kMaxPieceRows = 64;  // rows in a piece of a reward of single rows

// Rows that one worker gets at a time.
struct RowPiece {
  int64_t area = 0;  // number of its area over all batches: workers remember which they have
  int64_t first = 0, count = 0;
  int num_tries = 0;  // ends of workers at it that no row was to blame for
};

class PieceQueue {
 public:
  explicit PieceQueue(WorkerSystem& system = real_worker_system()) : arena_(system) {}

  // Begins a batch of `num_rows` rows and forgets the rest of the last one. No worker may be reading it.
  void begin(int64_t num_rows);
  // Adds rows of the batch (row i is row row_id[i] of it), split for so many workers. The split does not change the
  // rewards.
  Result<> add(const RewardBatch& rows, Granularity granularity, int num_workers, const std::string& label);

  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  [[nodiscard]] const std::deque<RowPiece>& waiting() const { return waiting_; }
  RowPiece take();
  // Before all others.
  void put_back(const RowPiece& piece) { waiting_.push_front(piece); }
  void clear() { waiting_.clear(); }
  // All pieces are settled, and no worker reads any row: their memory may be used again.
  void end() { begin(0); }

  // The place of its area, and the descriptor of the block that contains it.
  [[nodiscard]] const RowArena::Range& range(const RowPiece& piece) const { return area_of(piece).range; }
  [[nodiscard]] int fd(const RowPiece& piece) const { return arena_.fd(area_of(piece).range); }
  // Completion ids of the piece's rows before its row `row`; those of `count` rows are all of them.
  [[nodiscard]] size_t tokens_before(const RowPiece& piece, int64_t row) const {
    const std::vector<uint64_t>& offsets = area_of(piece).token_offsets;
    const auto first = static_cast<size_t>(piece.first);
    return offsets[first + static_cast<size_t>(row)] - offsets[first];
  }
  // Row of the batch that is row `row` of the piece.
  [[nodiscard]] int64_t row_of(const RowPiece& piece, int64_t row) const {
    return area_of(piece).row_of[static_cast<size_t>(piece.first + row)];
  }
  // The group of the piece's first row; nothing if the rows name no groups.
  [[nodiscard]] std::optional<int64_t> group_of(const RowPiece& piece) const {
    const std::vector<int64_t>& groups = area_of(piece).group_of;
    if (groups.empty()) return std::nullopt;
    return groups[static_cast<size_t>(piece.first)];
  }

 private:
  // Rows that came together.
  struct Area {
    RowArena::Range range;
    std::vector<int64_t> row_of;          // row of the batch
    std::vector<int64_t> group_of;        // or empty
    std::vector<uint64_t> token_offsets;  // [rows + 1] of the completion ids
  };
  [[nodiscard]] const Area& area_of(const RowPiece& piece) const {
    return areas_[static_cast<size_t>(piece.area - first_area_)];
  }
  void cut(const RewardBatch& rows, Granularity granularity, int num_workers);

  int64_t num_rows_ = 0;
  RowArena arena_;
  std::deque<Area> areas_;
  int64_t first_area_ = 0;  // number of areas_.front()
  std::deque<RowPiece> waiting_;
};

}  // namespace mortise
