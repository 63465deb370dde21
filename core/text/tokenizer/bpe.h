// Byte-pair encoding (Sennrich et al. 2016), as tokenizer.json describes it: byte-level (GPT-2), or characters with
// byte fallback (Llama 2, Gemma).
//
// Cost: O(n log n) in the length of a piece (heap of candidate merges over a linked list), and one hash look-up for a
// piece seen before. Thread rule: constant after loading, except for the word cache, which locks.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer/model.h"
#include "text/tokenizer/pair_table.h"
#include "text/tokenizer/word_cache.h"

namespace mortise {

struct BpeOptions {
  std::string unk_token;  // empty: none
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

class BpeModel final : public TokenModel {
 public:
  // merges: pairs of token texts, the first one applied first; where `ranks` are given, that of the lowest rank, and of
  // equal ones the leftmost in the text.
  static Result<std::unique_ptr<BpeModel>> make(Vocab vocab,
                                                const std::vector<std::pair<std::string, std::string>>& merges,
                                                BpeOptions options, const ComponentPlace& place,
                                                std::span<const int32_t> ranks = {});

  Result<> tokenize(std::string_view piece, std::vector<int64_t>& out) const override;
  [[nodiscard]] const Vocab& vocab() const override { return vocab_; }
  bool take_bytes() override;

 private:
  struct Symbol;
  BpeModel(Vocab vocab, BpeOptions options) : vocab_(std::move(vocab)), options_(std::move(options)) {}
  Result<> add_merges(const std::vector<std::pair<std::string, std::string>>& merges, std::span<const int32_t> ranks,
                      const ComponentPlace& place);
  void first_symbols(std::string_view piece, std::vector<int32_t>& ids) const;
  // A character as the vocabulary has it: with the prefix of a continued word, or the suffix of a word's end.
  std::string_view symbol_text(std::string_view piece, size_t begin, size_t end, std::string& made) const;
  bool add_fallback_bytes(std::string_view text, std::vector<int32_t>& ids) const;
  void merge(std::vector<int32_t>& ids) const;

  Vocab vocab_;
  BpeOptions options_;
  PairTable merges_;
  int32_t unk_id_ = kNoToken;
  int32_t fallback_ids_[256];  // ids of the tokens <0x00> .. <0xFF>
  bool bytes_ = false;
  int32_t byte_ids_[256];  // bytes_: id of each byte's character
  Vocab byte_vocab_;       // bytes_ and ignore_merges: raw bytes of every token
  mutable WordCache cache_;
};

Result<std::unique_ptr<TokenModel>> make_bpe(const Json& spec, const ComponentPlace& place);

}  // namespace mortise
