// Pages of prompts by their content, so that the engine computes a common start of several prompts once. It is a tree
// whose edges are blocks of 16 ids. The content of a page is a function of the ids from the prompt's start to the
// page's end, bit for bit, so sharing changes no number.
//
// An unused page stays for later prompts, up to a limit. The page that was unused longest goes first. Every page in the
// tree is reserved in the KV cache once. Cost: one look-up in a map per 16 ids. Thread rule: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "generate/decode/kv_cache.h"
#include "generate/kernels/kernels.h"

namespace mortise {

class PrefixCache {
 public:
  class Node;

  PrefixCache(KvCache& kv, int64_t max_unused_pages);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache();

  // Whole blocks of a prompt that can be shared: the last id is always computed, for the hidden state behind it.
  [[nodiscard]] static int64_t num_blocks(std::span<const int64_t> ids);

  // Appends the pages of the longest known start of `ids` and keeps them until release(); returns its end in the tree
  // (null: nothing is known).
  Node* acquire(std::span<const int64_t> ids, std::vector<float*>& pages);
  // Adds the blocks of `ids` after `known` (from acquire). The caller has reserved and taken their pages, which belong
  // to the tree from now on. Returns the new end, kept like acquire's.
  Node* insert(std::span<const int64_t> ids, Node* known, std::span<float* const> pages);
  // Ends what acquire and insert began.
  void release(Node* end);
  // Frees unused pages until `count` are free or no unused one is left.
  void make_room(int64_t count);
  // Forgets all. Precondition: everything was released.
  void clear();

  [[nodiscard]] int64_t num_pages() const { return num_pages_; }
  [[nodiscard]] int64_t num_unused_pages() const { return static_cast<int64_t>(unused_.size()); }

 private:
  using Block = std::array<int64_t, kPageTokens>;
  void drop_oldest();

  KvCache& kv_;
  int64_t max_unused_;
  int64_t num_pages_ = 0;
  std::map<Block, std::unique_ptr<Node>> roots_;
  std::list<Node*> unused_;  // oldest first, a page always before the page in front of it in the prompt
};

}  // namespace mortise
