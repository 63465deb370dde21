// PromptEncoder: one data row to the prompt that the model sees, by the row's own form.
//
//   "prompt": text                  the text, encoded with the tokenizer's special tokens
//   "prompt": [{role, content}..]   the chat, through the chat template with a generation prompt
//   "messages": [..]                the same under its other name (chat_renderer.h)
//   "prompt_token_ids": [..]        taken as they are
// The prompt column's name is data.prompt_key. Length policy (data.truncation) is applied here.
// Thread rule: const methods from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/keys/data.h"
#include "experience/data/chat_renderer.h"
#include "foundation/base/result.h"
#include "foundation/batch/prompt_batch.h"
#include "foundation/formats/json.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

// Cuts a list to at most `limit` items; kError: it is not to be called.
template <class T>
void truncate(std::vector<T>& items, int64_t limit, Truncation truncation) {
  const auto excess = static_cast<int64_t>(items.size()) - limit;
  if (excess <= 0) return;
  int64_t from = limit;  // kRight: keeps the front
  if (truncation == Truncation::kLeft) from = 0;
  if (truncation == Truncation::kMiddle) from = limit / 2;  // keeps the first and last halves
  items.erase(items.begin() + from, items.begin() + from + excess);
}

struct PromptEncoderOptions {
  std::string prompt_key = "prompt";
  int64_t max_prompt_length = 0;  // tokens; 0 = no limit
  Truncation truncation = Truncation::kError;
  Json template_kwargs = Json::object();
  std::string system_prompt;  // for chats without a system message; "" = none
  Json tools;                 // for rows without tools of their own; null = none
  bool only_chats = false;    // a prompt that is not a list of messages is refused (rollout.multi_turn)
};

class PromptEncoder {
 public:
  // `tokenizer` must outlive the encoder. Without a chat template, rows with messages are refused.
  PromptEncoder(const Tokenizer& tokenizer, ChatTemplates templates, PromptEncoderOptions options);

  // The prompt of `row`; `where` is "file:line". Token ids must be below `vocab_size` if that is positive.
  Result<Prompt> encode(const Json& row, std::string_view where, int64_t vocab_size) const;

  // What the rewards see of a row: its members without those of the prompt.
  [[nodiscard]] Json columns_of(const Json& row) const;

  // Is the row's prompt longer than the limit? Set by the last step of encode; used by filter_overlong_prompts.
  [[nodiscard]] bool is_overlong(const Prompt& prompt) const;
  // Cuts or refuses an overlong prompt.
  Result<> apply_length_policy(Prompt& prompt, std::string_view where) const;

  // Cuts a list to at most `limit` items by data.truncation; kError: it is not to be called.
  template <class T>
  void truncate(std::vector<T>& items, int64_t limit) const;

  [[nodiscard]] const Tokenizer& tokenizer() const { return *tokenizer_; }
  [[nodiscard]] const ChatRenderer& chats() const { return chats_; }
  [[nodiscard]] const PromptEncoderOptions& options() const { return options_; }

 private:
  Result<> encode_messages(const Json& row, const Json& messages, std::string_view where, Prompt& prompt) const;

  const Tokenizer* tokenizer_;
  ChatRenderer chats_;
  PromptEncoderOptions options_;
};

template <class T>
void PromptEncoder::truncate(std::vector<T>& items, int64_t limit) const {
  mortise::truncate(items, limit, options_.truncation);
}

}  // namespace mortise
