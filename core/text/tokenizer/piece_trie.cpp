// See piece_trie.h.
#include "text/tokenizer/piece_trie.h"

namespace mortise {

PieceTrie::PieceTrie(std::vector<std::pair<std::string_view, int32_t>> texts) : nodes_(1) {
  std::stable_sort(texts.begin(), texts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Range {  // the texts that begin as the node does
    size_t first;
    size_t last;
    size_t depth;
  };
  std::vector<Range> ranges = {{0, texts.size(), 0}};  // by node
  for (size_t node = 0; node < nodes_.size(); ++node) {
    auto [first, last, depth] = ranges[node];
    if (first < last && texts[first].first.size() == depth) nodes_[node].id = texts[first].second;
    while (first < last && texts[first].first.size() == depth) ++first;
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (first < last) {
      const auto byte = static_cast<uint8_t>(texts[first].first[depth]);
      size_t end = first;
      while (end < last && static_cast<uint8_t>(texts[end].first[depth]) == byte) ++end;
      nodes_.push_back({0, kNoToken, 0, byte});
      ranges.push_back({first, end, depth + 1});
      ++nodes_[node].num_children;
      first = end;
    }
  }
  for (uint32_t i = 0; i < nodes_[0].num_children; ++i)
    roots_[nodes_[nodes_[0].first_child + i].byte] = nodes_[0].first_child + i;
}

}  // namespace mortise
