// TokenGuide: which tokens may come next, so that the text of a completion matches a pattern.
//
// A token may come if a matching text continues with all of its bytes. An end id may come just where the text so far
// matches. Where nothing else may come, only end ids are left, so the completion ends. Special tokens have no text and
// never come, unless they are end ids. A completion that its limit of tokens cuts off may lack the rest of the match.
// The text is that of the tokens alone: with a tokenizer whose texts begin with a space that decoding drops
// (SentencePiece), the pattern sees the space of the first token.
// If the vocabulary has no token for a single byte, a way through the pattern may have no tokens. Such ways are found when
// the guide is made, and never entered.
// Cost: a set of tokens takes a walk through the trie of the vocabulary, as far as the pattern allows (about 2 ms for
// 150,000 tokens if it allows all), the first time that a state is met. Sets of up to kMostSetBytes are remembered.
// Thread rule: one thread at a time; a set is constant.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "foundation/base/result.h"
#include "text/guide/byte_automaton.h"
#include "text/guide/vocabulary_trie.h"

namespace mortise {

// A bit for each token, the lowest of the first word for id 0.
struct TokenSet {
  static constexpr int64_t kWordBits = 64;
  std::vector<uint64_t> words;
  int64_t count = 0;  // how many tokens it has

  explicit TokenSet(int64_t vocab_size) : words(static_cast<size_t>((vocab_size + kWordBits - 1) / kWordBits), 0) {}
  [[nodiscard]] bool has(int64_t id) const {
    return (words[static_cast<size_t>(id / kWordBits)] >> (id % kWordBits) & 1) != 0;
  }
  void add(int64_t id);
  void remove(int64_t id);
};

class TokenGuide {
 public:
  static constexpr size_t kMostSetBytes = size_t{64} << 20;

  // An error if the pattern is wrong, too large, or matches no text of these tokens, or if there is no end id.
  static Result<std::shared_ptr<TokenGuide>> create(std::shared_ptr<const VocabularyTrie> vocabulary,
                                                    std::string_view pattern, std::span<const int64_t> end_ids);

  // Tokens that may come in a state. kDead: the end ids.
  [[nodiscard]] std::shared_ptr<const TokenSet> allowed(int32_t state);
  // The state behind one more token, which was allowed. An end id changes nothing.
  [[nodiscard]] int32_t next(int32_t state, int64_t id) const;
  [[nodiscard]] const ByteAutomaton& automaton() const { return automaton_; }

 private:
  TokenGuide(std::shared_ptr<const VocabularyTrie> vocabulary, ByteAutomaton automaton, std::vector<int64_t> end_ids)
      : vocabulary_(std::move(vocabulary)), automaton_(std::move(automaton)), end_ids_(std::move(end_ids)) {}

  [[nodiscard]] bool is_end(int64_t id) const;
  [[nodiscard]] bool has_token_of_each_byte() const;
  Result<> find_dead_ways();
  // Calls found(id, state behind it) for each token that continues from a state. Returns how many nodes it looked at.
  template <class Found>
  int64_t walk(int32_t state, const Found& found) const;

  std::shared_ptr<const VocabularyTrie> vocabulary_;
  ByteAutomaton automaton_;
  std::vector<int64_t> end_ids_;
  std::vector<uint8_t> is_blind_;  // by state: no tokens lead from it to a match. Empty: none is
  std::unordered_map<int32_t, std::shared_ptr<const TokenSet>> sets_;
};

// The place of one completion in its guide.
class GuidePlace {
 public:
  GuidePlace() = default;  // no guide
  explicit GuidePlace(std::shared_ptr<TokenGuide> guide)
      : guide_(std::move(guide)), allowed_(guide_->allowed(ByteAutomaton::kStart)) {}

  void push(int64_t id) {
    if (guide_ == nullptr) return;
    state_ = guide_->next(state_, id);
    allowed_ = guide_->allowed(state_);
  }
  // Null without a guide.
  [[nodiscard]] const TokenSet* allowed() const { return allowed_.get(); }

 private:
  std::shared_ptr<TokenGuide> guide_;
  int32_t state_ = ByteAutomaton::kStart;
  std::shared_ptr<const TokenSet> allowed_;
};

}  // namespace mortise
