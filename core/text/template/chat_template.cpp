// See chat_template.h.
#include "text/template/chat_template.h"

#include "foundation/base/env.h"
#include "text/template/globals.h"
#include "text/template/interpreter.h"
#include "text/template/json_text.h"
#include "text/template/parser.h"

namespace mortise {

// About its bytes as text.
static size_t json_size(const Json& json) {
  if (json.is_string()) return json.get_ref<const std::string&>().size() + 2;
  size_t size = 2;
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) size += key.size() + 4 + json_size(value);
  } else if (json.is_array()) {
    for (const Json& value : json) size += json_size(value);
  }
  return size;
}

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view name) {
  return ChatTemplate(TRY(jinja::parse_template(source, name)));
}

bool ChatTemplate::has_generation_blocks() const { return tree_->has_generation; }

Result<Rendered> ChatTemplate::render(const RenderInput& input) const {
  if (!input.kwargs.is_object())
    return Error{ErrorKind::kData, "the template's variables must be an object", tree_->name, ""};
  const size_t input_bytes = tree_->source_bytes + json_size(input.messages) + json_size(input.tools) +
                             json_size(input.documents) + json_size(input.kwargs);
  jinja::Interpreter interpreter(*tree_, jinja::Limits::for_input(input_bytes, input.work_share));
  interpreter.now_s = input.now_s ? *input.now_s : default_env().wall_time_ns() / 1'000'000'000;
  jinja::define_globals(interpreter);
  interpreter.define("messages", jinja::from_json(input.messages));
  interpreter.define("tools", jinja::from_json(input.tools));
  interpreter.define("documents", jinja::from_json(input.documents));
  interpreter.define("add_generation_prompt", jinja::Value(input.add_generation_prompt));
  for (const auto& [name, value] : input.kwargs.items()) interpreter.define(name, jinja::from_json(value));
  Rendered rendered;
  rendered.text = TRY(interpreter.run());
  for (const jinja::Span& span : interpreter.generation_spans())
    rendered.assistant_spans.push_back({span.begin, span.end});
  return rendered;
}

}  // namespace mortise
