// All tokens that begin at a place of a text: a byte trie in one array, the children of a node side by side.
//
// Cost: 12 bytes a node; a step down looks through the node's children, which is a cache miss or two. Thread rule:
// constant after building.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer/vocab.h"

namespace mortise {

class PieceTrie {
 public:
  // Texts are not empty; of two that are equal the first one's id counts.
  explicit PieceTrie(std::vector<std::pair<std::string_view, int32_t>> texts);

  // Calls found(end, id) for every token that equals text[begin, end), shortest first. Returns the number of steps.
  template <class Found>
  size_t walk(std::string_view text, size_t begin, Found found) const {
    if (begin >= text.size()) return 0;
    uint32_t node = roots_[static_cast<uint8_t>(text[begin])];
    size_t end = begin + 1;
    for (; node != 0; ++end) {
      if (nodes_[node].id != kNoToken) found(end, nodes_[node].id);
      if (end >= text.size()) break;
      node = child(nodes_[node], static_cast<uint8_t>(text[end]));
    }
    return end - begin;
  }

 private:
  struct Node {
    uint32_t first_child = 0;
    int32_t id = kNoToken;
    uint16_t num_children = 0;
    uint8_t byte = 0;
  };

  // 0, the root, if there is none.
  [[nodiscard]] uint32_t child(const Node& node, uint8_t byte) const {
    const Node* const first = nodes_.data() + node.first_child;
    const Node* const last = first + node.num_children;
    const Node* const at =
        std::lower_bound(first, last, byte, [](const Node& one, uint8_t value) { return one.byte < value; });
    return at != last && at->byte == byte ? static_cast<uint32_t>(at - nodes_.data()) : 0;
  }

  std::vector<Node> nodes_;  // breadth first
  std::array<uint32_t, 256> roots_{};
};

}  // namespace mortise
