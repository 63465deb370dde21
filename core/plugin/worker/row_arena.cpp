#include "plugin/worker/row_arena.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace mortise {
namespace {

constexpr size_t kMinBlockBytes = size_t{1} << 20;
constexpr size_t kMaxIdleFactor = 4;  // a block that is larger than so many times the last batch is given back

size_t round_to_pages(size_t size) {
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (std::max<size_t>(size, 1) + page - 1) / page * page;
}

}  // namespace

void RowArena::reset() {
  last_used_ = 0;
  for (const Block& block : blocks_) last_used_ += block.used;
  const bool fits = blocks_.size() == 1 &&
                    blocks_.front().memory.size() <= std::max(kMinBlockBytes, kMaxIdleFactor * last_used_);
  if (!fits) blocks_.clear();
  for (Block& block : blocks_) block.used = 0;
}

Result<SharedMemory> RowArena::make_block(size_t size) const {
  size_t total = last_used_ + last_used_ / 4;  // room for a batch that is a little larger than the last
  for (const Block& block : blocks_) total += block.memory.size();
  const size_t roomy = round_to_pages(std::max({size, total, kMinBlockBytes}));
  auto memory = SharedMemory::create("mortise-rows", roomy, SharedMemory::Peer::kReads);
  if (memory.ok() || roomy == size) return memory;
  return SharedMemory::create("mortise-rows", size, SharedMemory::Peer::kReads);  // address space may be short
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
