// What the next token of a sample depends on in addition to the logits: the earlier tokens, and the forbidden ones.
//
// Cost: nothing if no option needs it; else one hash look-up per token and a look at the last few ids.
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "foundation/batch/sampling.h"

namespace mortise {

struct SeenToken {
  int64_t id = 0;
  int64_t count = 0;  // in the completion; 0: in the prompt only
};

// The logit of such a token after the penalties (transformers' repetition penalty, then OpenAI's two).
float penalised(float logit, const SeenToken& seen, const Sampling& params);

// Borrowed from a TokenHistory, and the tokens that a pattern allows from its owner.
struct TokenEdits {
  std::span<const int64_t> barred{};    // may hold an id twice
  std::span<const SeenToken> seen{};    // each id once
  std::span<const uint64_t> allowed{};  // a bit for each token of the vocabulary, from the lowest; empty: all

  [[nodiscard]] bool allows(int64_t id) const {
    return allowed.empty() || (allowed[static_cast<size_t>(id / 64)] >> (id % 64) & 1) != 0;
  }
};

class TokenHistory {
 public:
  // `params` must outlive the history.
  void start(const Sampling& params, std::span<const int64_t> prompt_ids);
  void push(int64_t id);
  // For the next token. Valid until the next call.
  [[nodiscard]] TokenEdits edits();
  // The latest tokens that bad words look at, prompt included: at most tail_size().
  [[nodiscard]] std::span<const int64_t> tail() const { return tail_; }
  [[nodiscard]] size_t tail_size() const { return tail_size_; }

 private:
  void see(int64_t id, int64_t count);

  const Sampling* params_ = nullptr;
  int64_t length_ = 0;  // tokens in the completion
  std::vector<SeenToken> seen_;
  std::unordered_map<int64_t, size_t> places_;  // id -> place in seen_
  std::vector<int64_t> tail_;                   // the last ids, as many as bad words look at
  size_t tail_size_ = 0;
  std::vector<int64_t> barred_;
};

}  // namespace mortise
