// ChatRenderer: the conversation of a data row to text, as in transformers' apply_chat_template.
//
// The template sees the special tokens, then data.apply_chat_template_kwargs, then the row's "chat_template_kwargs",
// the row's "tools" (a list, or JSON text of one) and "documents". Null keys of a message are left out. Its reasoning
// has both names "reasoning_content" and "thinking", whichever of them (or "reasoning") the row uses. Thread rule:
// const methods from any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "foundation/base/result.h"
#include "foundation/formats/json.h"
#include "text/tokenizer/chat_templates.h"

namespace mortise {

class ChatRenderer {
 public:
  ChatRenderer() = default;  // no template: every conversation is refused
  // `system_prompt`: added to conversations without a system message; empty: none.
  // `tools`: those of conversations whose row has none; null: none.
  ChatRenderer(ChatTemplates templates, Json kwargs, std::string system_prompt = "", Json tools = Json())
      : templates_(std::move(templates)),
        kwargs_(std::move(kwargs)),
        system_prompt_(std::move(system_prompt)),
        tools_(std::move(tools)) {}

  // The conversation to render: with the system prompt, if it has none of its own.
  [[nodiscard]] Json with_system_prompt(const Json& messages) const;

  // `messages` is a list, of the row or made from it, without the system prompt or with it; `where` is "file:line".
  [[nodiscard]] Result<Rendered> render(const Json& row, const Json& messages, bool add_generation_prompt,
                                        std::string_view where) const;
  // Do all templates mark what the assistant says with {% generation %}?
  [[nodiscard]] bool marks_assistant() const;

 private:
  ChatTemplates templates_;
  Json kwargs_ = Json::object();
  std::string system_prompt_;
  Json tools_;
};

}  // namespace mortise
