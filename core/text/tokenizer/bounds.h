// Limits on what the files of a tokenizer may ask for, so that encoding and decoding stay linear in the text for any
// files. Real tokenizers are far below each limit. Thread rule: plain values.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "foundation/base/result.h"

namespace mortise {

// Stages of a chain of normalizers, pre-tokenizers or decoders.
inline constexpr size_t kMaxStages = 64;
// What the normalizers and pre-tokenizers may make of a text, all stages together, for each of its bytes. NFKC and the
// byte-level alphabet together make 33 bytes for each byte of the longest character.
inline constexpr size_t kMaxGrowth = 64;
inline constexpr size_t kMinGrowthBytes = size_t{64} << 10;  // always allowed
// Steps through a trie of tokens, on average, for a byte of text: about the length of the longest tokens there are.
inline constexpr size_t kMaxStepsPerByte = 256;
// Size of a subword prefix, a word suffix.
inline constexpr size_t kMaxAffixBytes = 64;
// Ids that a post-processor puts around a text.
inline constexpr size_t kMaxAddedIds = 1024;

// Largest text that a chain may make from a text of so many bytes.
inline size_t growth_limit(size_t bytes) { return kMaxGrowth * bytes + kMinGrowthBytes; }

inline Error grows_too_much(std::string_view stage, size_t limit) {
  return Error{ErrorKind::kData,
               "the " + std::string(stage) + " makes more than " + std::to_string(limit) + " bytes of one text", "",
               "correct the tokenizer's file: no chain may make a text more than " + std::to_string(kMaxGrowth) +
                   " times as long"};
}

// The steps that finding tokens in a text may take.
class StepBudget {
 public:
  explicit StepBudget(size_t text_bytes) : left_(kMaxStepsPerByte * text_bytes + kMinGrowthBytes) {}
  bool spend(size_t steps) {
    if (steps > left_) return false;
    left_ -= steps;
    return true;
  }
  [[nodiscard]] static Error spent() {
    return Error{
        ErrorKind::kData,
        "finding tokens in a text takes more than " + std::to_string(kMaxStepsPerByte) + " steps for each of its bytes",
        "", "the tokenizer has very long tokens that overlap: remove them"};
  }

 private:
  size_t left_;
};

}  // namespace mortise
