// See vocabulary_trie.h.
#include "text/guide/vocabulary_trie.h"

#include <algorithm>
#include <numeric>

namespace mortise {
namespace {

size_t common_bytes(std::string_view a, std::string_view b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(end - a.begin());
}

Result<std::string> text_of(const Tokenizer& tokenizer, int64_t id) {
  auto bytes = tokenizer.token_bytes(id);
  if (bytes.ok()) return bytes;
  return Error{ErrorKind::kConfig, "a pattern cannot guide this tokenizer: " + bytes.error().what,
               tokenizer.folder().string(), "sample without a pattern"};
}

}  // namespace

std::string_view VocabularyTrie::bytes_of(int64_t id) const {
  if (id < 0 || id >= vocab_size_) return {};
  const auto at = static_cast<size_t>(id);
  return std::string_view(bytes_).substr(bytes_begin_[at], bytes_begin_[at + 1] - bytes_begin_[at]);
}

Result<VocabularyTrie> VocabularyTrie::create(const Tokenizer& tokenizer, int64_t vocab_size) {
  VocabularyTrie out;
  out.vocab_size_ = vocab_size;
  out.bytes_begin_.push_back(0);
  std::vector<int32_t> ids;
  for (int64_t id = 0; id < vocab_size; ++id) {
    if (!tokenizer.is_special(id)) {
      const std::string bytes = TRY(text_of(tokenizer, id));
      if (!bytes.empty() && bytes.size() <= kMostTokenBytes) {
        out.bytes_ += bytes;
        ids.push_back(static_cast<int32_t>(id));
      }
    }
    out.bytes_begin_.push_back(static_cast<uint32_t>(out.bytes_.size()));
  }
  std::ranges::stable_sort(ids, {}, [&](int32_t id) { return out.bytes_of(id); });
  std::vector<uint32_t> open;  // the nodes on the way to the last token
  const auto close = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back()) out.nodes_[open.back()].end = static_cast<uint32_t>(out.nodes_.size());
  };
  std::string_view before;
  for (const int32_t id : ids) {
    const std::string_view bytes = out.bytes_of(id);
    close(common_bytes(before, bytes));
    while (open.size() < bytes.size()) {
      Node node;
      node.first_id = static_cast<uint32_t>(out.ids_.size());
      node.byte = static_cast<uint8_t>(bytes[open.size()]);
      open.push_back(static_cast<uint32_t>(out.nodes_.size()));
      node.depth = static_cast<uint16_t>(open.size());
      out.nodes_.push_back(node);
    }
    Node& own = out.nodes_[open.back()];
    out.ids_.push_back(id);
    ++own.num_ids;
    before = bytes;
  }
  close(0);
  return out;
}

}  // namespace mortise
