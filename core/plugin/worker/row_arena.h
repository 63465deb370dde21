// The shared memory for the rows of a batch: a few blocks, for any number of parts.
//
// Every part begins on its own page, so that a worker maps only that part. Blocks double in size, so the number of
// descriptors grows with the logarithm of the bytes. A batch of the same size as the last one reuses the memory.
// Threading: plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "foundation/base/result.h"
#include "plugin/worker/shared_memory.h"
#include "plugin/worker/system.h"

namespace mortise {

class RowArena {
 public:
  explicit RowArena(WorkerSystem& system = real_worker_system()) : system_(&system) {}

  // A part of a block. Blocks are numbered over all batches: a worker remembers which one it has.
  struct Range {
    int64_t block = -1;
    size_t offset = 0, size = 0;  // bytes; `offset` is a multiple of the page size
  };

  // Forgets all ranges and keeps at most one block. No process may still read them, because the next ones use the same
  // memory.
  void reset();
  // An error: the machine has refused the memory, or a descriptor for it, for a few seconds.
  Result<Range> allocate(size_t size);
  [[nodiscard]] std::span<std::byte> bytes(const Range& range) const;
  [[nodiscard]] int fd(const Range& range) const { return block_of(range).memory.fd(); }
  [[nodiscard]] size_t num_blocks() const { return blocks_.size(); }

 private:
  struct Block {
    int64_t number = 0;
    SharedMemory memory;
    size_t used = 0;
  };
  [[nodiscard]] const Block& block_of(const Range& range) const;
  Result<SharedMemory> make_block(size_t size) const;

  WorkerSystem* system_;
  std::vector<Block> blocks_;
  int64_t next_number_ = 0;
  size_t last_used_ = 0;  // bytes of the batch before
};

}  // namespace mortise
