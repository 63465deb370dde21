// See chat_templates.h.
#include "text/tokenizer/chat_templates.h"

namespace mortise {
namespace {

Json special_tokens_of(const Tokenizer& tokenizer) {
  Json variables = Json::object();
  for (const auto& [role, text] : tokenizer.special_tokens()) variables[role] = text;
  return variables;
}

}  // namespace

Result<ChatTemplates> ChatTemplates::of_folder(const Tokenizer& tokenizer) {
  ChatTemplates made;
  if (const TemplateSource* plain = tokenizer.chat_template(false))
    made.plain_ = TRY(ChatTemplate::parse(plain->text, plain->place));
  if (const TemplateSource* with_tools = tokenizer.chat_template(true))
    made.with_tools_ = TRY(ChatTemplate::parse(with_tools->text, with_tools->place));
  made.special_tokens_ = special_tokens_of(tokenizer);
  return made;
}

Result<ChatTemplates> ChatTemplates::single(std::string_view source, std::string_view name) {
  ChatTemplates made;
  made.plain_ = TRY(ChatTemplate::parse(source, name));
  return made;
}

Result<ChatTemplates> ChatTemplates::single(std::string_view source, std::string_view name,
                                            const Tokenizer& tokenizer) {
  ChatTemplates made = TRY(single(source, name));
  made.special_tokens_ = special_tokens_of(tokenizer);
  return made;
}

const ChatTemplate* ChatTemplates::choose(bool with_tools) const {
  if (with_tools && with_tools_) return &*with_tools_;
  return plain_ ? &*plain_ : nullptr;
}

}  // namespace mortise
