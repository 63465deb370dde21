// Finds the calls of each form.
#include "text/tools/tool_calls.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "foundation/base/text.h"
#include "text/tools/harmony.h"
#include "text/tools/python_values.h"

namespace mortise {
namespace {

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";

ToolCall faulty(std::string why) {
  ToolCall call;
  call.fault = std::move(why);
  return call;
}

// {"name": ..., "arguments": {...}}; the arguments may be JSON text, and have the name "parameters".
ToolCall call_of(const Json& json) {
  const Json* const name = json.is_object() ? json_find(json, "name") : nullptr;
  if (name == nullptr || !name->is_string()) return faulty("the call has no \"name\"");
  ToolCall call;
  call.name = name->get<std::string>();
  const Json* arguments = json_find(json, "arguments");
  if (arguments == nullptr) arguments = json_find(json, "parameters");
  if (arguments == nullptr || arguments->is_null()) return call;
  Json value = *arguments;
  if (value.is_string()) {
    auto parsed = parse_json(value.get_ref<const std::string&>(), "");
    value = parsed.ok() ? *std::move(parsed) : Json();
  }
  if (value.is_object())
    call.arguments = std::move(value);
  else
    call.fault = fmt::format("the arguments of {} are not a JSON object", quote(call.name));
  return call;
}

ToolCall json_call(std::string_view text) {
  auto parsed = parse_json(trim(text), "");
  if (!parsed.ok()) return faulty("the call is not valid JSON: " + parsed.error().what);
  return call_of(*parsed);
}

// What stands between the marks, one after the other. The last one may lack its end.
std::vector<std::string_view> between(std::string_view text, std::string_view open, std::string_view close) {
  std::vector<std::string_view> parts;
  for (size_t at = text.find(open); at != std::string_view::npos; at = text.find(open, at)) {
    at += open.size();
    const size_t end = text.find(close, at);
    parts.push_back(text.substr(at, end == std::string_view::npos ? end : end - at));
    if (end == std::string_view::npos) break;
    at = open == close ? end : end + close.size();
  }
  return parts;
}

// The end of the JSON value that begins at text[0], which is a bracket; npos: it has none.
size_t end_of_json(std::string_view text) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// One line break at each end belongs to the form, not to the value.
std::string_view without_line_breaks(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// The JSON type that the tools declare for an argument; "" if they do not.
std::string declared_type(const Json& tools, const std::string& function, const std::string& argument) {
  if (!tools.is_array()) return "";
  for (const Json& tool : tools) {
    const Json* const own = json_find(tool, "function");
    const Json& schema = own != nullptr && own->is_object() ? *own : tool;
    const Json* const name = json_find(schema, "name");
    if (name == nullptr || *name != function) continue;
    const Json* at = &schema;
    for (const std::string_view key : {std::string_view("parameters"), std::string_view("properties"),
                                       std::string_view(argument), std::string_view("type")}) {
      at = at->is_object() ? json_find(*at, key) : nullptr;
      if (at == nullptr) return "";
    }
    return at->is_string() ? at->get<std::string>() : "";
  }
  return "";
}

// A value that the form writes as plain text.
Json value_of_text(std::string_view text, const std::string& type) {
  if (type == "string") return Json(text);
  auto parsed = parse_json(trim(text), "");
  if (parsed.ok() && (!type.empty() || !parsed->is_object())) return *std::move(parsed);
  if (trim(text) == "True") return Json(true);
  if (trim(text) == "False") return Json(false);
  return Json(text);
}

ToolCall xml_call(std::string_view text, const Json& tools) {
  constexpr std::string_view kFunction = "<function=";
  const size_t begin = text.find(kFunction);
  const size_t end = begin == std::string_view::npos ? begin : text.find('>', begin);
  if (end == std::string_view::npos) return faulty("the call has no <function=NAME>");
  ToolCall call;
  call.name = std::string(trim(text.substr(begin + kFunction.size(), end - begin - kFunction.size())));
  const std::string_view body = text.substr(end + 1);
  for (const std::string_view part : between(body, "<parameter=", "</parameter>")) {
    const size_t name_end = part.find('>');
    if (name_end == std::string_view::npos) {
      call.fault = "a <parameter=NAME> of the call has no '>'";
      return call;
    }
    const std::string name(trim(part.substr(0, name_end)));
    call.arguments[name] =
        value_of_text(without_line_breaks(part.substr(name_end + 1)), declared_type(tools, call.name, name));
  }
  return call;
}

// Objects one after the other, with ";" between them. An answer that is no call begins otherwise.
std::vector<ToolCall> llama_calls(std::string_view text) {
  constexpr std::string_view kTag = "<|python_tag|>";
  text = trim(text);
  const bool is_tagged = text.starts_with(kTag);
  if (is_tagged) text = trim(text.substr(kTag.size()));
  std::vector<ToolCall> calls;
  while (text.starts_with('{')) {
    const size_t end = end_of_json(text);
    auto parsed = parse_json(text.substr(0, end), "");
    const bool is_call = parsed.ok() && json_find(*parsed, "name") != nullptr;
    if (!is_call && !is_tagged && calls.empty() && text.find("\"name\"") == std::string_view::npos) return {};
    calls.push_back(parsed.ok() ? call_of(*parsed) : faulty("the call is not valid JSON: " + parsed.error().what));
    if (end == std::string_view::npos) break;
    text = trim(text.substr(end));
    while (text.starts_with(';') || text.starts_with(',')) text = trim(text.substr(1));
  }
  if (calls.empty() && is_tagged) calls.push_back(faulty("there is no JSON object after <|python_tag|>"));
  return calls;
}

std::vector<ToolCall> mistral_calls(std::string_view text) {
  constexpr std::string_view kMark = "[TOOL_CALLS]", kArgs = "[ARGS]";
  std::vector<ToolCall> calls;
  for (std::string_view part : between(text, kMark, kMark)) {
    part = trim(part);
    if (part.starts_with('[')) {
      auto list = parse_json(part.substr(0, end_of_json(part)), "");
      if (!list.ok()) calls.push_back(faulty("the list of calls is not valid JSON: " + list.error().what));
      for (const Json& one : list.ok() ? *list : Json::array()) calls.push_back(call_of(one));
      continue;
    }
    const size_t brace = part.find('{');
    if (brace == std::string_view::npos) {
      calls.push_back(faulty("the call has no arguments: write NAME[ARGS]{...}"));
      continue;
    }
    std::string_view name = trim(part.substr(0, brace));
    if (name.ends_with(kArgs)) name = trim(name.substr(0, name.size() - kArgs.size()));
    auto arguments = parse_json(part.substr(brace, end_of_json(part.substr(brace))), "");
    if (!arguments.ok()) {
      calls.push_back(faulty("the arguments are not valid JSON: " + arguments.error().what));
      continue;
    }
    calls.push_back(call_of(Json{{"name", std::string(name)}, {"arguments", *arguments}}));
  }
  return calls;
}

constexpr std::string_view kFunctions = "functions.";

// Who gets a message: X of to=X, which begins the header or follows a space or a token. nullopt: it goes to nobody.
std::optional<std::string_view> harmony_recipient(std::string_view header) {
  constexpr std::string_view kTo = "to=";
  for (size_t at = header.find(kTo); at != std::string_view::npos; at = header.find(kTo, at + 1)) {
    if (at > 0 && std::string_view(" \t\n>").find(header[at - 1]) == std::string_view::npos) continue;
    const std::string_view rest = header.substr(at + kTo.size());
    return rest.substr(0, rest.find_first_of(" \t\n<"));
  }
  return std::nullopt;
}

// A fault of a call whose function is known: the answer repeats its name.
ToolCall faulty_call(std::string_view name, std::string why) {
  ToolCall call = faulty(std::move(why));
  call.name = std::string(name);
  return call;
}

// Messages one after the other, each a header, <|message|> and a body. The header of a call names who gets it: to=X,
// before the channel or after it. The header of the first message begins in the prompt. A message of another role than
// the assistant's calls nothing, and neither does plain text without the tokens of a message.
std::vector<ToolCall> harmony_calls(std::string_view text) {
  using namespace harmony;
  constexpr std::string_view kOwnRole = "<|start|>assistant";
  std::vector<ToolCall> calls;
  while (!text.empty()) {
    const size_t next = text.find(kStart, 1);
    const std::string_view message = text.substr(0, next);
    text = next == std::string_view::npos ? std::string_view() : text.substr(next);
    const size_t header_end = message.find(kMessage);
    std::string_view header = message.substr(0, header_end);
    if (header.starts_with(kOwnRole))
      header.remove_prefix(kOwnRole.size());
    else if (header.starts_with(kStart))
      continue;
    const std::optional<std::string_view> recipient = harmony_recipient(header);
    if (!recipient) continue;
    std::string_view name = *recipient;
    const bool has_body = header_end != std::string_view::npos;
    if (!name.starts_with(kFunctions)) {
      if (has_body || header.find(kChannel) != std::string_view::npos)
        calls.push_back(faulty_call(name, fmt::format("the call goes to {}, not to functions.NAME", quote(name))));
      continue;
    }
    name.remove_prefix(kFunctions.size());
    if (!has_body) {
      calls.push_back(faulty_call(name, fmt::format("the call of {} has no <|message|> with arguments", quote(name))));
      continue;
    }
    std::string_view body = message.substr(header_end + kMessage.size());
    for (const std::string_view end : {kCall, kEnd}) body = body.substr(0, body.find(end));
    auto arguments = parse_json(trim(body), "");
    if (arguments.ok())
      calls.push_back(call_of(Json{{"name", std::string(name)}, {"arguments", *std::move(arguments)}}));
    else
      calls.push_back(faulty_call(name, "the arguments are not valid JSON: " + arguments.error().what));
  }
  return calls;
}

}  // namespace

std::vector<ToolCall> find_tool_calls(std::string_view text, ToolFormat format, const Json& tools) {
  std::vector<ToolCall> calls;
  switch (format) {
    case ToolFormat::kHermes:
      for (const std::string_view part : between(text, kOpen, kClose)) calls.push_back(json_call(part));
      break;
    case ToolFormat::kQwen3Coder:
      for (const std::string_view part : between(text, kOpen, kClose)) calls.push_back(xml_call(part, tools));
      break;
    case ToolFormat::kLlama3Json:
      return llama_calls(text);
    case ToolFormat::kLlama3Pythonic:
      return read_python_calls(text);
    case ToolFormat::kMistral:
      return mistral_calls(text);
    case ToolFormat::kGptOss:
      return harmony_calls(text);
  }
  return calls;
}

size_t length_without_calls(std::string_view text, ToolFormat format) {
  std::string_view mark;
  switch (format) {
    case ToolFormat::kHermes:
    case ToolFormat::kQwen3Coder:
      mark = kOpen;
      break;
    case ToolFormat::kMistral:
      mark = "[TOOL_CALLS]";
      break;
    case ToolFormat::kLlama3Json:
    case ToolFormat::kLlama3Pythonic: {  // the whole turn is calls, or none of it is
      const std::string_view begin = trim(text);
      return begin.empty() || std::string_view("{[<").find(begin.front()) != std::string_view::npos ? 0 : text.size();
    }
    case ToolFormat::kGptOss:  // HarmonyText leaves the calls out
      return text.size();
  }
  if (const size_t at = text.find(mark); at != std::string_view::npos) return at;
  for (size_t part = std::min(mark.size() - 1, text.size()); part > 0; --part) {
    if (text.ends_with(mark.substr(0, part))) return text.size() - part;
  }
  return text.size();
}

Json tool_calls_json(const std::vector<ToolCall>& calls) {
  Json out = Json::array();
  for (const ToolCall& call : calls) {
    Json one = Json::object();
    if (!call.name.empty()) one["name"] = call.name;
    if (call.fault.empty())
      one["arguments"] = call.arguments;
    else
      one["error"] = call.fault;
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace mortise
