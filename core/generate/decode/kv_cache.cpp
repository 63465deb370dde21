// See kv_cache.h.
#include "generate/decode/kv_cache.h"

#include <algorithm>

namespace mortise {

namespace {

constexpr int64_t kMarkFloats = 2;  // a page on a device: its number, and the round in which it was computed (0: never)

}  // namespace

int64_t KvCache::allocated_bytes() const {
  int64_t total = 0;
  for (const FloatBuffer& slab : slabs_) total += slab.size() * static_cast<int64_t>(sizeof(float));
  return total;
}

bool KvCache::reserve(int64_t pages) {
  if (reserved_ + pages > max_pages_) return false;
  reserved_ += pages;
  return true;
}

float* KvCache::take() {
  if (unused_.empty()) {
    constexpr int64_t kSlabFloats = int64_t{1} << 18;
    const int64_t floats = memory_ == PageMemory::kOnDevice ? kMarkFloats : shape_.page_floats();
    const int64_t count = std::max<int64_t>(1, kSlabFloats / floats);
    const int64_t first = std::ssize(slabs_) * count;
    FloatBuffer& slab = slabs_.emplace_back(count * floats);
    for (int64_t i = count - 1; i >= 0; --i) {
      unused_.push_back(slab.data() + i * floats);
      if (memory_ == PageMemory::kOnDevice) *unused_.back() = std::bit_cast<float>(static_cast<int32_t>(first + i));
    }
  }
  float* const page = unused_.back();
  unused_.pop_back();
  ++num_taken_;
  return page;
}

void KvCache::set_computed(float* page) {
  if (is_computed(page)) return;
  page[1] = std::bit_cast<float>(round_);
  ++num_computed_;
}

void KvCache::forget_computed() {
  ++round_;
  num_computed_ = 0;
}

void KvCache::give_back(std::vector<float*>& pages) {
  for (float* const page : pages) {
    if (memory_ != PageMemory::kOnDevice || !is_computed(page)) continue;
    page[1] = 0.0F;
    --num_computed_;
  }
  num_taken_ -= static_cast<int64_t>(pages.size());
  unused_.insert(unused_.end(), pages.rbegin(), pages.rend());
  pages.clear();
}

bool KvCache::free_unused() {
  if (num_taken_ > 0) return false;
  unused_.clear();
  slabs_.clear();
  return true;
}

}  // namespace mortise
