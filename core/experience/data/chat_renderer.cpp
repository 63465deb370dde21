// Builds the variables of a chat template from a data row, and renders it.
#include "experience/data/chat_renderer.h"

#include <fmt/core.h>

namespace mortise {

namespace {

Error bad_row(std::string what, std::string_view where, std::string next = "") {
  return Error{ErrorKind::kData, std::move(what), std::string(where), std::move(next)};
}

// Without its null keys, and its reasoning under the names that templates read.
Json as_template_sees(const Json& message) {
  Json kept = Json::object();
  const Json* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Json* value = json_find(message, name);
    if (reasoning == nullptr && value != nullptr && !value->is_null()) reasoning = value;
  }
  if (reasoning != nullptr) kept["thinking"] = *reasoning;
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) kept[key] = value;
  }
  if (reasoning != nullptr) kept["reasoning_content"] = *reasoning;
  return kept;
}

Result<Json> conversation_of(const Json& messages, std::string_view where) {
  if (messages.empty()) return bad_row("the conversation has no messages", where, "remove the row");
  Json seen = Json::array();
  for (const Json& message : messages) {
    if (!message.is_object())
      return bad_row(fmt::format("message {} of the conversation is not an object", seen.size()), where,
                     "write messages as {\"role\": ..., \"content\": ...}");
    seen.push_back(as_template_sees(message));
  }
  return seen;
}

Result<Json> tools_of(const Json& row, std::string_view where) {
  const Json* tools = json_find(row, "tools");
  if (tools == nullptr || tools->is_null()) return Json();
  if (tools->is_string()) {
    const auto parsed = parse_json(tools->get_ref<const std::string&>(), where);
    if (!parsed.ok()) return bad_row("the column 'tools' is text, but not JSON: " + parsed.error().what, where);
    if (parsed->is_array() || parsed->is_null()) return *parsed;
  } else if (tools->is_array()) {
    return *tools;
  }
  return bad_row("the column 'tools' must be a list", where);
}

}  // namespace

Json ChatRenderer::with_system_prompt(const Json& messages) const {
  if (system_prompt_.empty() || !messages.is_array()) return messages;
  for (const Json& message : messages) {
    const Json* role = json_find(message, "role");
    if (role != nullptr && (*role == "system" || *role == "developer")) return messages;
  }
  Json out = Json::array({{{"role", "system"}, {"content", system_prompt_}}});
  out.insert(out.end(), messages.begin(), messages.end());
  return out;
}

Result<Rendered> ChatRenderer::render(const Json& row, const Json& messages, bool add_generation_prompt,
                                      std::string_view where) const {
  if (templates_.empty()) {
    return bad_row("the row holds a chat, but the model folder has no chat template", where,
                   "set model.custom_chat_template to a Jinja file, or give the prompt as text");
  }
  RenderInput input;
  input.messages = TRY(conversation_of(with_system_prompt(messages), where));
  input.tools = TRY(tools_of(row, where));
  if (input.tools.is_null()) input.tools = tools_;
  if (const Json* documents = json_find(row, "documents"); documents != nullptr && documents->is_array())
    input.documents = *documents;
  input.add_generation_prompt = add_generation_prompt;
  input.kwargs = templates_.special_tokens();
  for (const auto& [name, value] : kwargs_.items()) input.kwargs[name] = value;
  if (const Json* own = json_find(row, "chat_template_kwargs"); own != nullptr && !own->is_null()) {
    if (!own->is_object()) return bad_row("the column 'chat_template_kwargs' must be an object", where);
    for (const auto& [name, value] : own->items()) input.kwargs[name] = value;
  }
  const ChatTemplate* chat = templates_.choose(!input.tools.is_null());
  if (chat == nullptr) {
    return bad_row("the model folder only has a chat template for conversations with tools", where,
                   "set model.custom_chat_template to a Jinja file");
  }
  auto rendered = chat->render(input);
  if (!rendered.ok())
    return bad_row(
        fmt::format("the chat template refuses the row: {} ({})", rendered.error().what, rendered.error().where), where,
        rendered.error().next);
  return *std::move(rendered);
}

bool ChatRenderer::marks_assistant() const {
  const ChatTemplate* plain = templates_.choose(false);
  const ChatTemplate* with_tools = templates_.choose(true);
  return !templates_.empty() && (plain == nullptr || plain->has_generation_blocks()) &&
         with_tools->has_generation_blocks();
}

}  // namespace mortise
