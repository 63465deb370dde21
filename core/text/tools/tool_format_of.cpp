// Renders a chat with a call, and tries each reader on what the template added.
#include "text/tools/tool_format_of.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "foundation/base/choice.h"
#include "text/tools/tool_calls.h"

namespace mortise {
namespace {

constexpr std::string_view kName = "probe_tool";

Json probe_tools() {
  const Json a = {{"type", "integer"}, {"description", "a number"}};
  return Json::array({{{"type", "function"},
                       {"function",
                        {{"name", kName},
                         {"description", "A tool"},
                         {"parameters", {{"type", "object"}, {"properties", {{"a", a}}}, {"required", {"a"}}}}}}}});
}

// What the template writes for an assistant that calls the tool; empty: nothing that can be used.
std::string rendered_turn(const ChatTemplate& chat, const Json& kwargs) {
  RenderInput input;
  input.messages = Json::array({{{"role", "user"}, {"content", "?"}}});
  input.tools = probe_tools();
  input.kwargs = kwargs;
  input.add_generation_prompt = true;
  const auto prompt = chat.render(input);
  const Json function = {{"name", kName}, {"arguments", {{"a", 7}}}};
  input.messages.push_back({{"role", "assistant"},
                            {"content", ""},
                            {"tool_calls", {{{"id", "000000001"}, {"type", "function"}, {"function", function}}}}});
  input.add_generation_prompt = false;
  const auto whole = chat.render(input);
  if (!prompt.ok() || !whole.ok()) return {};
  const auto differ = std::ranges::mismatch(prompt->text, whole->text);
  return {differ.in2, whole->text.end()};
}

bool reads_call(std::string_view turn, ToolFormat format, const Json& tools) {
  const auto calls = find_tool_calls(turn, format, tools);
  return calls.size() == 1 && calls[0].fault.empty() && calls[0].name == kName && calls[0].arguments == Json{{"a", 7}};
}

}  // namespace

std::optional<ToolFormat> tool_format_of(const ChatTemplates& templates) {
  const ChatTemplate* const chat = templates.choose(true);
  if (chat == nullptr) return std::nullopt;
  const Json tools = probe_tools();
  const std::string turn = rendered_turn(*chat, templates.special_tokens());
  // The end of the turn may follow a list in Python's notation, which ends with its bracket.
  const std::string_view to_bracket = std::string_view(turn).substr(0, turn.rfind(']') + 1);
  for (size_t i = 0; i < choice_names(ToolFormat{}).size(); ++i) {
    const auto format = static_cast<ToolFormat>(i);
    const bool is_list = format == ToolFormat::kLlama3Pythonic;
    if (reads_call(is_list ? to_bracket : std::string_view(turn), format, tools)) return format;
  }
  return std::nullopt;
}

}  // namespace mortise
