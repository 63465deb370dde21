// Calls of tools in the answers of a chat: what a client may read while a completion grows, and the calls at its end.
//
// A call is sent whole, once the completion has ended, in a stream too. A completion with a call that cannot be read is
// plain text, as with vLLM. Thread rule: plain values and pure functions.
#pragma once

#include <optional>
#include <string>

#include "foundation/formats/json.h"
#include "serve/api/completion_call.h"

namespace mortise {

// Tells the text before the first call from the rest, token by token. Its two texts differ by special tokens: some forms
// begin a call with one.
class CallText {
 public:
  CallText(const Tokenizer& tokenizer, ToolFormat format, bool skips_special_tokens);
  void push(int64_t id);

  // What belongs to no call for certain, so far.
  [[nodiscard]] const std::string& shown() const { return shown_; }
  // All before the first call. Precondition: the completion has ended, and has calls.
  [[nodiscard]] std::string before_calls() const;

 private:
  ToolFormat format_;
  IncrementalDecoder whole_decoder_, visible_decoder_;
  std::string whole_, visible_;
  std::string shown_;
  size_t shown_of_whole_ = 0;  // bytes
};

// The calls of a completion that has ended, as the API writes them. Empty list: it calls no tool.
Json tool_calls_of(const CompletionCall& call, const ServedTexts& texts, size_t request,
                   const ServedSequence& sequence);

}  // namespace mortise
