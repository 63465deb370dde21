// Added tokens: texts such as <|im_end|> that are found before the model sees anything.
//
// Those with `normalized` false are looked for in the raw text, the others in the normalised pieces between them; at
// each place the longest wins. Cost: linear, one table look-up per byte where no token begins; tokens that make it
// more than kMaxStepsPerByte are an error. Thread rule: constant after build().
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/vocab.h"

namespace mortise {

struct AddedToken {
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

// A stretch of text: an added token, or (id kNoToken) the text between two.
struct AddedSpan {
  size_t begin;
  size_t end;
  int32_t id;
};

// Finds the longest of many texts at each place: a byte trie.
class TokenTrie {
 public:
  TokenTrie();
  void insert(std::string_view text, int32_t id);
  // End and id of the longest token that starts at `begin`; kNoToken if there is none. Counts its steps in `steps`.
  int32_t longest_at(std::string_view text, size_t begin, size_t& end, size_t& steps) const;
  // First place at or after `begin` where a text could start.
  [[nodiscard]] size_t next_start(std::string_view text, size_t begin) const;

 private:
  struct Node {
    int32_t id = kNoToken;
    std::vector<std::pair<uint8_t, uint32_t>> children;
  };
  std::vector<Node> nodes_;
  std::array<bool, 256> starts_{};
};

class AddedTokens {
 public:
  // A token seen before (by text) takes the new flags, and keeps its id.
  Result<> add(AddedToken token, int64_t id, std::string_view where);
  // After the last add().
  Result<> build(const Normalizer* normalizer);

  // skip_special: special tokens are plain text.
  Result<> split_raw(std::string_view text, bool skip_special, std::vector<AddedSpan>& out) const {
    return split(raw_, text, skip_special, out);
  }
  Result<> split_normalized(std::string_view text, bool skip_special, std::vector<AddedSpan>& out) const {
    return split(normalized_, text, skip_special, out);
  }

  [[nodiscard]] int32_t find(std::string_view text) const { return vocab_.find(text); }
  // The text that decoding shows: for a token with `normalized` the normalised text. Null if there is no such token.
  [[nodiscard]] const std::string* shown_text(int64_t id) const;
  // Whether this is the text of a special token. A token that normalising changes does not count, as in the library:
  // its text as decoding shows it is another one.
  [[nodiscard]] bool is_special(std::string_view text) const;
  [[nodiscard]] int64_t id_limit() const { return vocab_.id_limit(); }
  [[nodiscard]] size_t size() const { return vocab_.size(); }

 private:
  Result<> split(const TokenTrie& trie, std::string_view text, bool skip_special, std::vector<AddedSpan>& out) const;

  struct Entry {
    AddedToken token;
    std::string shown;
  };

  Vocab vocab_;
  std::unordered_map<int32_t, Entry> tokens_;  // by id
  TokenTrie raw_;
  TokenTrie normalized_;
};

}  // namespace mortise
