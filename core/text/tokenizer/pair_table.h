// Hash table from a pair of token ids to the merge of the two. Open addressing, power-of-two size, at most half full:
// about one cache miss per look-up, which is most of the cost of BPE on new words. Thread rule: constant after
// building.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mortise {

struct PairMerge {
  int32_t rank;
  int32_t id;  // the merged token
};

class PairTable {
 public:
  void reserve(size_t num_pairs) {
    size_t size = 16;
    while (size < num_pairs * 2) size *= 2;
    slots_.assign(size, {kFree, {}});
  }
  // A pair seen before takes the new merge. Precondition: reserve() was called with enough.
  void put(int32_t left, int32_t right, PairMerge merge) {
    Slot& slot = slots_[place_of(key_of(left, right))];
    slot = {key_of(left, right), merge};
  }
  [[nodiscard]] const PairMerge* find(int32_t left, int32_t right) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[place_of(key_of(left, right))];
    return slot.key == kFree ? nullptr : &slot.merge;
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Slot {
    uint64_t key;
    PairMerge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  [[nodiscard]] size_t place_of(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t i = (key * 0x9E3779B97F4A7C15ULL >> 20) & mask;
    while (slots_[i].key != kFree && slots_[i].key != key) i = (i + 1) & mask;
    return i;
  }
  std::vector<Slot> slots_;
};

}  // namespace mortise
