// See kv_cache.h.
#include "generate/decode/kv_cache.h"

#include <algorithm>

namespace mortise {

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
    constexpr int64_t kSlabBytes = int64_t{1} << 20;
    const int64_t count = std::max<int64_t>(1, kSlabBytes / shape_.page_bytes());
    FloatBuffer& slab = slabs_.emplace_back(count * shape_.page_floats());
    for (int64_t i = count - 1; i >= 0; --i) unused_.push_back(slab.data() + i * shape_.page_floats());
  }
  float* const page = unused_.back();
  unused_.pop_back();
  ++num_taken_;
  return page;
}

void KvCache::give_back(std::vector<float*>& pages) {
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
