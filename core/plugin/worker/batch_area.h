// Rows in shared memory: the trainer writes them once, and every worker reads them without a copy.
//
// Cost of writing: one copy of the columns. Threading: plain values; a written area is read-only.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "foundation/base/result.h"
#include "mortise/kinds/reward.h"

namespace mortise {

// Bytes that write_batch() needs for these rows.
size_t batch_bytes(const mortise_reward_in& in);
// Writes the rows to `area`, which has batch_bytes() bytes and begins at a multiple of 16.
void write_batch(const mortise_reward_in& in, std::span<std::byte> area);

// The rows of an area, or of a call, to be cut. The memory must outlive it.
class BatchView {
 public:
  BatchView() = default;
  // An area that does not hold what its head says is refused.
  static Result<BatchView> open(std::span<const std::byte> area);

  // A view of rows in place. The rows must outlive it.
  static BatchView over(const mortise_reward_in& in);

  [[nodiscard]] int64_t num_rows() const { return all_.num_rows; }
  // Rows [first, first + count), as a plugin gets them; valid until the next call.
  const mortise_reward_in& slice(int64_t first, int64_t count);

 private:
  const uint64_t* rebased(const uint64_t* offsets, int64_t first, int64_t count);
  void cut(mortise_text_column& column, int64_t first, int64_t count);
  void cut(mortise_id_column& column, int64_t first, int64_t count);

  mortise_reward_in all_{};
  std::vector<mortise_column> columns_;
  mortise_reward_in slice_{};
  std::vector<mortise_column> slice_columns_;
  std::vector<const mortise_column*> slice_pointers_;
  std::vector<uint64_t> slice_offsets_;
};

}  // namespace mortise
