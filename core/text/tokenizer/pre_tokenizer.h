// Pre-tokenizers: cut a normalised piece of text into the words that the model then encodes one by one.
//
// A stage turns a list of pieces into a longer list. Pieces are views of the input or of strings kept in the list's
// own storage. Cost: linear; no copy of the text but where a stage changes it. Thread rule: constant after loading.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/bounds.h"
#include "text/tokenizer/component.h"

namespace mortise {

struct Piece {
  std::string_view text;
  bool at_start;  // begins where the whole input begins
};

struct PieceList {
  std::vector<Piece> pieces;
  std::deque<std::string> storage;  // strings that stages made; their addresses do not change
  size_t stored_bytes = 0;
  size_t max_bytes = 0;  // bytes of them all (bounds.h)

  Result<std::string_view> keep(std::string text) {
    stored_bytes += text.size();
    if (stored_bytes > max_bytes) return grows_too_much("chain of pre-tokenizers", max_bytes);
    return std::string_view(storage.emplace_back(std::move(text)));
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual Result<> apply(PieceList& list) const = 0;
  // The stage's last step is the byte-level alphabet. A model that works on bytes asks to leave that step out.
  [[nodiscard]] virtual bool ends_in_byte_level() const { return false; }
  virtual void leave_out_byte_level() {}
};

// From the "pre_tokenizer" of tokenizer.json; null gives null.
Result<std::unique_ptr<PreTokenizer>> make_pre_tokenizer(const Json& spec, const ComponentPlace& place);

}  // namespace mortise
