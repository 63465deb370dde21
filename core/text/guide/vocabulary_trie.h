// The tokens of a vocabulary by their bytes: a trie in the order of a walk through it, so that what lies below a node is a
// run of the array, and a walk skips what it cannot enter.
//
// Special tokens, tokens without bytes and those of more than kMostTokenBytes bytes are not in it.
// Cost: 16 bytes a node, and the texts of the tokens. Thread rule: constant after building.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

class VocabularyTrie {
 public:
  static constexpr size_t kMostTokenBytes = 1024;

  struct Node {
    uint32_t end = 0;       // behind the nodes below this one
    uint32_t first_id = 0;  // place in ids_ of the tokens that end here
    uint16_t num_ids = 0;
    uint16_t depth = 0;  // bytes from the root, which has no node
    uint8_t byte = 0;
  };

  // Tokens [0, vocab_size) of the model. An error if the text of a token depends on others (Tokenizer::token_bytes).
  static Result<VocabularyTrie> create(const Tokenizer& tokenizer, int64_t vocab_size);

  [[nodiscard]] int64_t vocab_size() const { return vocab_size_; }
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
  [[nodiscard]] std::span<const int32_t> ids_at(const Node& node) const {
    return std::span(ids_).subspan(node.first_id, node.num_ids);
  }
  // The token's bytes; empty if it is not in the trie.
  [[nodiscard]] std::string_view bytes_of(int64_t id) const;

 private:
  VocabularyTrie() = default;

  int64_t vocab_size_ = 0;
  std::vector<Node> nodes_;
  std::vector<int32_t> ids_;
  std::string bytes_;                  // those of all tokens, one after the other
  std::vector<uint32_t> bytes_begin_;  // [vocab_size + 1]
};

}  // namespace mortise
