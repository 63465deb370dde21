// Which tokens of a rendered conversation the assistant wrote: those that hold a character of the {% generation %}
// blocks of its chat template. For learning the assistant's turns alone.
//
// Tokens are laid over the text by decoding them one by one, which works where decoding gives the text back; where a
// tokenizer normalises it away, that is an error. Cost: one decoding. Thread rule: a pure function.
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
// points, sorted), or some bytes of one.
Result<std::vector<uint8_t>> assistant_mask(const Tokenizer& tokenizer, std::string_view text,
                                            std::span<const int64_t> ids, std::span<const TextRange> spans);

}  // namespace mortise
