// The tokens of a rendered conversation that the assistant wrote: those with a character in the {% generation %} blocks
// of its chat template. Used to learn only the assistant's turns.
//
// Decoding the tokens gives their places in the text. If a tokenizer normalises (NFC, a space in front, fewer spaces),
// the two texts are aligned: case, marks and compatibility forms do not count, an inserted character belongs to the
// character after it, and a rewritten stretch counts as a whole. This equals transformers'
// return_assistant_tokens_mask, except for a character at a block's end that consists of several tokens: here all of
// them count, there only the first.
// Cost: one decoding, linear. Thread rule: a pure function.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

// 1 for each of `ids` (of `text`, without the post-processor's special tokens) that has a character in `spans` (code
// points, sorted), or some bytes of one. An Error where the tokens' text cannot be aligned with `text`.
Result<std::vector<uint8_t>> assistant_mask(const Tokenizer& tokenizer, std::string_view text,
                                            std::span<const int64_t> ids, std::span<const TextRange> spans);

}  // namespace mortise
