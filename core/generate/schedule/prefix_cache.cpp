// See prefix_cache.h.
#include "generate/schedule/prefix_cache.h"

#include <algorithm>

namespace mortise {

class PrefixCache::Node {
 public:
  Node* parent = nullptr;
  Block block{};
  float* page = nullptr;
  int64_t num_users = 0;               // prompts whose path leads through here
  std::list<Node*>::iterator place{};  // in unused_, where num_users is 0
  std::map<Block, std::unique_ptr<Node>> children;
};

namespace {

std::array<int64_t, kPageTokens> block_at(std::span<const int64_t> ids, int64_t index) {
  std::array<int64_t, kPageTokens> block{};
  std::copy_n(ids.begin() + index * kPageTokens, kPageTokens, block.begin());
  return block;
}

}  // namespace

PrefixCache::PrefixCache(KvCache& kv, int64_t max_unused_pages) : kv_(kv), max_unused_(max_unused_pages) {}
PrefixCache::~PrefixCache() = default;

int64_t PrefixCache::num_blocks(std::span<const int64_t> ids) {
  return std::max<int64_t>(0, static_cast<int64_t>(ids.size()) - 1) / kPageTokens;
}

PrefixCache::Node* PrefixCache::acquire(std::span<const int64_t> ids, std::vector<float*>& pages) {
  Node* end = nullptr;
  for (int64_t i = 0; i < num_blocks(ids); ++i) {
    auto& children = end == nullptr ? roots_ : end->children;
    const auto found = children.find(block_at(ids, i));
    if (found == children.end()) break;
    end = found->second.get();
    if (end->num_users++ == 0) unused_.erase(end->place);
    pages.push_back(end->page);
  }
  return end;
}

PrefixCache::Node* PrefixCache::insert(std::span<const int64_t> ids, Node* known, std::span<float* const> pages) {
  int64_t depth = 0;
  for (const Node* node = known; node != nullptr; node = node->parent) ++depth;
  Node* end = known;
  for (float* const page : pages) {
    auto& children = end == nullptr ? roots_ : end->children;
    const Block block = block_at(ids, depth++);
    auto node = std::make_unique<Node>();
    node->parent = end;
    node->block = block;
    node->page = page;
    node->num_users = 1;
    end = (children[block] = std::move(node)).get();
    ++num_pages_;
  }
  return end;
}

void PrefixCache::release(Node* end) {
  for (Node* node = end; node != nullptr; node = node->parent) {
    if (--node->num_users > 0) continue;
    node->place = unused_.insert(unused_.end(), node);
  }
  while (num_unused_pages() > max_unused_) drop_oldest();
}

// It has no children: they would be unused too, and older.
void PrefixCache::drop_oldest() {
  Node* const node = unused_.front();
  unused_.pop_front();
  std::vector<float*> page = {node->page};
  kv_.give_back(page);
  kv_.unreserve(1);
  --num_pages_;
  auto& siblings = node->parent == nullptr ? roots_ : node->parent->children;
  siblings.erase(Block(node->block));
}

void PrefixCache::make_room(int64_t count) {
  while (!unused_.empty() && kv_.max_pages() - kv_.reserved_pages() < count) drop_oldest();
}

void PrefixCache::clear() {
  while (!unused_.empty()) drop_oldest();
}

}  // namespace mortise
