// Keys and values in pages of 16 tokens. A page has all layers and KV heads of its tokens, with keys transposed so that
// scores are vectors over positions (kernels.h). All samples of a group share the prompt's pages. A sample owns only
// the pages of its own tokens.
//
// Pages come from slabs of about 1 MiB, made on demand and kept until free_unused(). The scheduler reserves pages
// before it admits a sample, so take() always has room. Thread rule: one thread. The team writes the pages, each
// token's place by one member.
//
// A device has its pages in memory of its own (device_cache.h). Here such a page has a number, and a mark that the keys and
// values of all its tokens are computed.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "model/tensor/aligned.h"

namespace mortise {

struct KvShape {
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;

  [[nodiscard]] int64_t value_stride() const { return (head_dim + 15) / 16 * 16; }
  // Keys [head_dim][16], then values [16][value_stride].
  [[nodiscard]] int64_t head_floats() const { return 16 * (head_dim + value_stride()); }
  [[nodiscard]] int64_t page_floats() const { return num_layers * num_kv_heads * head_floats(); }
  [[nodiscard]] int64_t page_bytes() const { return page_floats() * static_cast<int64_t>(sizeof(float)); }
  [[nodiscard]] int64_t offset(int64_t layer, int64_t kv_head) const {
    return (layer * num_kv_heads + kv_head) * head_floats();
  }
  static constexpr int64_t kPageTokens = 16;
  [[nodiscard]] static int64_t pages_for(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }
};

enum class PageMemory { kHere, kOnDevice };

class KvCache {
 public:
  KvCache(KvShape shape, int64_t max_pages, PageMemory memory = PageMemory::kHere)
      : shape_(shape), max_pages_(max_pages), memory_(memory) {}

  [[nodiscard]] const KvShape& shape() const { return shape_; }
  [[nodiscard]] int64_t max_pages() const { return max_pages_; }
  [[nodiscard]] int64_t reserved_pages() const { return reserved_; }
  [[nodiscard]] int64_t allocated_bytes() const;

  // Sets `pages` aside for later take(); false: not so many are left.
  bool reserve(int64_t pages);
  void unreserve(int64_t pages) { reserved_ -= pages; }
  // A page out of what was reserved. Its content is undefined but finite.
  float* take();
  // Gives pages back (the reservation is given back apart).
  void give_back(std::vector<float*>& pages);
  // Frees the slabs if no page is out; returns whether it did.
  bool free_unused();

  // For kOnDevice. Numbers begin at 0, and none is as high as the most pages that were out at once.
  [[nodiscard]] static int32_t number_of(const float* page) { return std::bit_cast<int32_t>(page[0]); }
  // A page is computed from here on until it is given back, or all are forgotten.
  void set_computed(float* page);
  [[nodiscard]] bool is_computed(const float* page) const { return std::bit_cast<uint32_t>(page[1]) == round_; }
  [[nodiscard]] int64_t num_computed() const { return num_computed_; }
  void forget_computed();

 private:
  KvShape shape_;
  int64_t max_pages_;
  int64_t reserved_ = 0;
  std::vector<FloatBuffer> slabs_;
  std::vector<float*> unused_;
  int64_t num_taken_ = 0;
  PageMemory memory_;
  uint32_t round_ = 1;  // that marks have which were not forgotten
  int64_t num_computed_ = 0;
};

}  // namespace mortise
