// Models: one piece of text to token ids.
// Thread rule: constant after loading; tokenize may run on any number of threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "text/tokenizer/component.h"
#include "text/tokenizer/vocab.h"

namespace mortise {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of a piece. The piece is never empty.
  virtual Result<> tokenize(std::string_view piece, std::vector<int64_t>& out) const = 0;
  [[nodiscard]] virtual const Vocab& vocab() const = 0;
  // Number of entries, behind which added tokens are numbered (unigram files may hold a text twice).
  [[nodiscard]] virtual int64_t size() const { return static_cast<int64_t>(vocab().size()); }
  // True: from now on pieces are raw bytes, not characters of the byte-level alphabet (pre_tokenizer.h). False: not
  // possible.
  virtual bool take_bytes() { return false; }
};

// From the "model" of tokenizer.json.
Result<std::unique_ptr<TokenModel>> make_model(const Json& spec, const ComponentPlace& place);
// {"text": id, ...}
Result<Vocab> read_vocab(const Json& spec, const ComponentPlace& place);

// Word-level: a piece is a token or unknown.
Result<std::unique_ptr<TokenModel>> make_word_level(const Json& spec, const ComponentPlace& place);
// Greedy longest match from the left (BERT).
Result<std::unique_ptr<TokenModel>> make_word_piece(const Json& spec, const ComponentPlace& place);
// The most probable cut by token scores (SentencePiece's unigram model).
Result<std::unique_ptr<TokenModel>> make_unigram(const Json& spec, const ComponentPlace& place);
struct UnigramOptions {
  int32_t unk_id = kNoToken;
  bool byte_fallback = false;
  bool single_precision = false;  // sums of scores are rounded as SentencePiece's
};
// scores: by id; not a number for a token that no text becomes.
std::unique_ptr<TokenModel> make_unigram_model(Vocab vocab, std::vector<double> scores, UnigramOptions options);

}  // namespace mortise
