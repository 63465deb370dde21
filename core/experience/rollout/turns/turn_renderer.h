// TurnRenderer: observations to the token ids that stand between two assistant turns.
//
// Nothing that was sampled is tokenized again. A short conversation with a mark in the place of the assistant's turn is
// rendered with the chat template. What follows the mark is the suffix: the rest of that turn, the observation, and the
// prompt for the next turn. The part that the model has sampled itself, its end token, is left out. So every template
// works that writes the messages before a turn alike whatever comes after it. Some templates take a tool's answer only
// after a turn that calls it (gpt-oss). Such a turn is rendered alone and with the answer; what is new is the suffix.
// Such a template writes the name of the last call, so that answers to calls of several functions are rendered apart.
// Cost: one or two renderings per observation, for such templates two for each function.
// Thread rule: const methods from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experience/data/chat_renderer.h"
#include "foundation/base/result.h"
#include "foundation/batch/prompt_batch.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

class TurnRenderer {
 public:
  // An Error if the chat template cannot continue a conversation after an assistant turn: with answers of tools, or
  // with messages of the user if `has_tools` is false. `tokenizer` must outlive the object.
  static Result<TurnRenderer> create(const Tokenizer& tokenizer, ChatRenderer chats, std::vector<int64_t> stop_ids,
                                     bool has_tools);

  // The ids after `sampled`, an assistant turn: `messages` is the observation, a list of {"role", "content"}.
  [[nodiscard]] Result<std::vector<int64_t>> suffix(const Prompt& prompt, std::span<const int64_t> sampled,
                                                    const Json& messages) const;
  // The ids of the prompt with further messages. A text of the user that follows one of the user is added to it.
  [[nodiscard]] Result<std::vector<int64_t>> prompt_with(const Prompt& prompt, const Json& messages) const;

  // The turn as text, without the end token but with other special tokens: where tool calls are looked for.
  [[nodiscard]] std::string turn_text(std::span<const int64_t> sampled) const;

 private:
  TurnRenderer(const Tokenizer& tokenizer, ChatRenderer chats, std::vector<int64_t> stop_ids)
      : tokenizer_(&tokenizer), chats_(std::move(chats)), stop_ids_(std::move(stop_ids)) {}
  [[nodiscard]] bool ends_with_stop(std::span<const int64_t> sampled) const;
  [[nodiscard]] Result<std::string> text_after_turn(const Json& columns, const Json& messages) const;
  [[nodiscard]] std::optional<size_t> end_of_call(const std::string& text) const;
  [[nodiscard]] Result<std::string> text_after_call(const Json& columns, const Json& answers, bool is_first,
                                                    bool is_last) const;
  [[nodiscard]] Result<> check(bool has_tools) const;
  [[nodiscard]] Result<std::string> text_after_calls(const Json& columns, const Json& messages) const;
  [[nodiscard]] Result<bool> answers_calls() const;

  const Tokenizer* tokenizer_;
  ChatRenderer chats_;
  std::vector<int64_t> stop_ids_;
  bool needs_calls_ = false;  // the template takes answers of tools only after a turn with a call
};

}  // namespace mortise
