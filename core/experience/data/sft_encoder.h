// SftEncoder: one data row to the tokens that `mortise sft` learns, by the row's own form.
//
//   prompt + data.response_key text       the tokens of the completion and the end token, after those of the prompt
//   prompt + data.response_key messages   the tokens that the whole chat has after those of the prompt
//   data.messages_key messages            all tokens of the chat
// sft.completion_only_loss = false learns the prompt too. sft.assistant_only_loss learns only what the {% generation %}
// blocks of the chat template wrote. Names and meaning are TRL's. The result is a Prompt whose response_ids begin with
// the first token that is learnt. Thread rule: const methods from any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experience/data/prompt_encoder.h"

namespace mortise {

struct SftEncoderOptions {
  std::string response_key = "response";
  std::string messages_key = "messages";
  std::optional<int64_t> end_id;    // added to a completion that is text
  int64_t max_response_length = 0;  // for a completion that is text, the end token included
  int64_t max_length = 0;           // for a chat; cut as prompts are
  bool filter_overlong = false;     // leave rows out that are too long
  bool assistant_only_loss = false;
  std::optional<bool> completion_only_loss;  // none: as the form of the row says
  int64_t vocab_size = 0;                    // 0: ids are not checked
};

class SftEncoder {
 public:
  // Refuses assistant_only_loss if a template does not mark what the assistant says. Borrows `prompts`.
  static Result<SftEncoder> create(const PromptEncoder& prompts, SftEncoderOptions options);

  // Nothing: the row is left out, because of filter_overlong, or because the cut chat has no token to learn.
  [[nodiscard]] Result<std::optional<Prompt>> encode(const Json& row, const std::string& where) const;

 private:
  // A row as one run of tokens.
  struct Tokens {
    std::vector<int64_t> ids;
    std::vector<uint8_t> learnt;
  };
  SftEncoder(const PromptEncoder& prompts, SftEncoderOptions options)
      : prompts_(&prompts), options_(std::move(options)) {}

  [[nodiscard]] Result<std::optional<Prompt>> encode_text(const Json& row, const std::string& text,
                                                          const std::string& where) const;
  [[nodiscard]] Result<std::optional<Prompt>> encode_chat(const Json& row, const Json& messages, const Json* prompt,
                                                          const std::string& where) const;
  [[nodiscard]] Result<Tokens> chat_tokens(const Json& row, const Json& messages, const std::string& where) const;
  [[nodiscard]] Result<> mask_prompt(const Json& row, const Json& prompt, const std::string& where,
                                     Tokens& tokens) const;
  [[nodiscard]] Result<bool> fit(const std::string& where, Tokens& tokens) const;
  [[nodiscard]] Result<> check_ids(const std::vector<int64_t>& ids, const std::string& where) const;

  const PromptEncoder* prompts_;
  SftEncoderOptions options_;
};

}  // namespace mortise
