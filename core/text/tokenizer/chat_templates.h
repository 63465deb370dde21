// The chat templates of a model folder, parsed, with the variables that the folder gives them: its special tokens.
// Thread rule: constant after making, cheap to copy.
#pragma once

#include <optional>
#include <string_view>

#include "foundation/formats/json.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

class ChatTemplates {
 public:
  ChatTemplates() = default;  // none
  // The templates of the tokenizer's folder; empty() if it has none.
  static Result<ChatTemplates> of_folder(const Tokenizer& tokenizer);
  // One template for all conversations, instead of the folder's. Errors name `name`, its file.
  static Result<ChatTemplates> single(std::string_view source, std::string_view name, const Tokenizer& tokenizer);
  static Result<ChatTemplates> single(std::string_view source, std::string_view name);  // without special tokens

  [[nodiscard]] bool empty() const { return !plain_ && !with_tools_; }
  // The template for conversations with or without tools; null if there is none.
  [[nodiscard]] const ChatTemplate* choose(bool with_tools) const;
  // {"bos_token": "<s>", ...}
  [[nodiscard]] const Json& special_tokens() const { return special_tokens_; }

 private:
  std::optional<ChatTemplate> plain_;
  std::optional<ChatTemplate> with_tools_;
  Json special_tokens_ = Json::object();
};

}  // namespace mortise
