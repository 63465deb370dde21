// Which tokens of a rendered conversation the assistant wrote: those that hold a character of the {% generation %}
// blocks of its chat template. For learning the assistant's turns alone.
//
// Tokens are laid over the text by decoding them. Where a tokenizer normalises (NFC, a space in front, fewer spaces)
// the two texts are aligned: case, marks and compatibility forms do not count, what was put in belongs to the character
// behind it, and a stretch that was rewritten counts as a whole. As transformers' return_assistant_tokens_mask, but for
// a character at a block's end that several tokens make up: here all of them count, there the first.
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
