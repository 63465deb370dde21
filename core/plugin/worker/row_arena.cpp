// Allocates parts of a batch from growing blocks of shared memory.
#include "plugin/worker/row_arena.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "plugin/worker/retry_policy.h"

namespace mortise {
namespace {

constexpr size_t kMinBlockBytes = size_t{1} << 20;
constexpr int64_t kRetryMs = 3'000;
constexpr size_t kMaxIdleFactor = 4;  // a block that is larger than so many times the last batch is given back

size_t round_to_pages(size_t size) {
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (std::max<size_t>(size, 1) + page - 1) / page * page;
}

}  // namespace

void RowArena::reset() {
  last_used_ = 0;
  for (const Block& block : blocks_) last_used_ += block.used;
  if (blocks_.size() > 1) blocks_.erase(blocks_.begin(), blocks_.end() - 1);  // the last is the largest
  if (!blocks_.empty() && blocks_.back().memory.size() > std::max(kMinBlockBytes, kMaxIdleFactor * last_used_))
    blocks_.clear();
  for (Block& block : blocks_) block.used = 0;
}

// What the machine refuses now it may give a moment later; the call waits that long.
Result<SharedMemory> RowArena::make_block(size_t size) const {
  size_t total = last_used_ + last_used_ / 4;  // room for a batch that is a little larger than the last
  for (const Block& block : blocks_) total += block.memory.size();
  const size_t roomy = round_to_pages(std::max({size, total, kMinBlockBytes}));
  BackOff pause(10, 1'000);
  while (true) {
    auto memory = SharedMemory::create("mortise-rows", roomy, SharedMemory::Peer::kReads, *system_);
    if (!memory.ok() && roomy > size)  // address space may be short
      memory = SharedMemory::create("mortise-rows", size, SharedMemory::Peer::kReads, *system_);
    if (memory.ok() || pause.failing_ms(system_->monotonic_ns()) >= kRetryMs) return memory;
    pause.fail(system_->monotonic_ns());
    system_->sleep_ms(pause.wait_ms(system_->monotonic_ns()));
  }
}

Result<RowArena::Range> RowArena::allocate(size_t size) {
  const size_t needed = round_to_pages(size);
  if (blocks_.empty() || blocks_.back().memory.size() - blocks_.back().used < needed) {
    SharedMemory memory = TRY(make_block(needed));
    blocks_.push_back({next_number_++, std::move(memory), 0});
  }
  Block& block = blocks_.back();
  return Range{block.number, std::exchange(block.used, block.used + needed), size};
}

const RowArena::Block& RowArena::block_of(const Range& range) const {
  return blocks_[static_cast<size_t>(range.block - blocks_.front().number)];
}

std::span<std::byte> RowArena::bytes(const Range& range) const {
  return {block_of(range).memory.data() + range.offset, range.size};
}

}  // namespace mortise
