// verl's tools and interactions: the files that tool_config_path and interaction_config_path name become parameters of
// the environment `python` (plugins/environment/python/verl_tools.py), and an MCP server that is a program becomes
// params.mcp.
//
// verl gives the rewards of tools and interactions to the reward function (extra_info) and adds them to nothing, so
// rollout.multi_turn.reward_weight is 0.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "foundation/base/limits.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "import/frameworks.h"
#include "import/yaml.h"

namespace mortise {
namespace {

constexpr std::string_view kTable = "rollout.multi_turn.";
constexpr std::string_view kTools = "rollout.multi_turn.tool_config_path";
constexpr std::string_view kFunctions = "rollout.multi_turn.function_tool_path";
constexpr std::string_view kInteractions = "rollout.multi_turn.interaction_config_path";
constexpr std::string_view kMcpClass = "verl.tools.mcp_base_tool.MCPBaseTool";

bool is_text(const Json* value) { return value != nullptr && value->is_string(); }

// One of the two YAML files. Reports what is wrong with it as a problem of the setting.
class ToolFile {
 public:
  ToolFile(Env& env, Translation& t, std::string_view setting)
      : env_(env), t_(t), setting_(setting), path_(t.text(setting)) {}

  // The entries of its list, each with a class_name and a config. Null after a problem.
  Json entries(const char* list) {
    const auto text = env_.read_file(path_, limits::kMaxConfigFileBytes);
    if (!text.ok()) return wrong("cannot be read", "name the file as seen from this folder");
    const auto tree = parse_yaml(*text, path_);
    if (!tree.ok()) return wrong("is not YAML: " + tree.error().to_string(), "correct it");
    std::vector<Error> problems;
    const Json whole = node_to_json(*tree, problems);
    if (!problems.empty()) return wrong("holds a date: " + problems.front().to_string(), "correct it");
    if (dump_json(whole).find("${") != std::string::npos)
      return wrong("has an interpolation (${...})", "write its value into the file");
    const Json* const found = json_find(whole, list);
    if (found == nullptr || !found->is_array() || found->empty())
      return wrong(fmt::format("has no list {}", quote(list)), "write it as verl's documentation says");
    for (const Json& entry : *found) {
      const Json* const config = json_find(entry, "config");
      if (is_text(json_find(entry, "class_name")) && config != nullptr && config->is_object()) continue;
      return wrong(fmt::format("has an entry of {} without class_name or config", quote(list)), "write both");
    }
    return *found;
  }

  Json wrong(const std::string& what, std::string next) {
    t_.problem(setting_, fmt::format("the file {} {}", path_, what), std::move(next));
    return nullptr;
  }

 private:
  Env& env_;
  Translation& t_;
  std::string_view setting_;
  std::string path_;
};

std::string shell_word(const std::string& text) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-./=:@%+,").find(c) != std::string::npos;
  };
  if (!text.empty() && std::ranges::all_of(text, is_plain)) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\"'\"'") : std::string(1, c);
  return quoted + "'";
}

// The commands of the servers that an entry of the type mcp names. Null after a problem.
Json mcp_commands(Env& env, ToolFile& file, const Json& entry) {
  const std::string name = entry["class_name"].get<std::string>();
  if (name != kMcpClass)
    return file.wrong(fmt::format("has the class {} for an MCP server, which may change its answers", name),
                      fmt::format("use {}, or write the tool as a class of the type native", kMcpClass));
  const Json* const mcp = json_find(entry, "mcp");
  const Json* const path = mcp == nullptr ? nullptr : json_find(*mcp, "mcp_servers_config_path");
  if (!is_text(path)) return file.wrong("has an MCP entry without mcp.mcp_servers_config_path", "write it");
  if (const Json* const chosen = json_find(*mcp, "tool_selected_list"); chosen != nullptr && !chosen->is_null())
    return file.wrong("sets tool_selected_list, and Mortise takes all tools of a server",
                      "let the server offer these tools alone");
  const auto text = env.read_file(path->get<std::string>(), limits::kMaxConfigFileBytes);
  if (!text.ok()) return file.wrong("names a file of servers that cannot be read", "name it as seen from this folder");
  const auto whole = parse_json(*text, path->get<std::string>());
  const Json* const servers = whole.ok() ? json_find(*whole, "mcpServers") : nullptr;
  if (servers == nullptr || !servers->is_object())
    return file.wrong("names a file of servers without \"mcpServers\"", "correct it");
  Json commands = Json::array();
  for (const auto& [server, settings] : servers->items()) {
    const Json* const command = json_find(settings, "command");
    if (!is_text(command) || json_find(settings, "env") != nullptr)
      return file.wrong(fmt::format("needs the MCP server {}, which is not a program with its arguments alone", server),
                        "write a program that forwards to it or sets its variables, and name that as \"command\"");
    std::string line = shell_word(command->get<std::string>());
    const Json* const arguments = json_find(settings, "args");
    for (const Json& word : arguments == nullptr ? Json::array() : *arguments)
      line += " " + shell_word(word.is_string() ? word.get<std::string>() : dump_json(word));
    commands.push_back(line);
  }
  return commands;
}

void take_tools(Env& env, Translation& t, Json& params) {
  ToolFile file(env, t, kTools);
  Json tools = Json::array(), commands = Json::array();
  for (const Json& entry : file.entries("tools")) {
    const Json* const type = json_find(entry["config"], "type");
    if (type != nullptr && *type == "mcp") {
      for (const Json& command : mcp_commands(env, file, entry)) commands.push_back(command);
      continue;
    }
    if (type == nullptr || *type != "native") {
      file.wrong(fmt::format("has a tool whose config.type is {}", type == nullptr ? "not given" : dump_json(*type)),
                 "use native, or mcp");
      return;
    }
    Json tool = {{"class_name", entry["class_name"]}, {"config", entry["config"]}};
    if (const Json* const schema = json_find(entry, "tool_schema"); schema != nullptr) tool["tool_schema"] = *schema;
    tools.push_back(std::move(tool));
  }
  if (!tools.empty()) params["verl_tools"] = dump_json(tools);
  if (!commands.empty()) params["mcp"] = dump_json(commands);
}

// verl's name of an interaction without one: that of its class, in small letters and without "Interaction".
std::string default_name(std::string class_name) {
  class_name.erase(0, class_name.rfind('.') + 1);
  constexpr std::string_view kEnd = "Interaction";
  if (class_name.ends_with(kEnd)) class_name.resize(class_name.size() - kEnd.size());
  return to_lower_ascii(class_name);
}

void take_interactions(Env& env, Translation& t, Json& params) {
  ToolFile file(env, t, kInteractions);
  Json interactions = Json::array();
  for (const Json& entry : file.entries("interaction")) {
    const Json* const given = json_find(entry, "name");
    const std::string name =
        is_text(given) ? given->get<std::string>() : default_name(entry["class_name"].get<std::string>());
    const auto is_same = [&](const Json& one) { return one["name"] == name; };
    if (std::ranges::any_of(interactions, is_same)) {
      file.wrong(fmt::format("has two interactions with the name {}", quote(name)), "give each a name of its own");
      return;
    }
    interactions.push_back({{"name", name}, {"class_name", entry["class_name"]}, {"config", entry["config"]}});
  }
  if (!interactions.empty()) params["verl_interactions"] = dump_json(interactions);
}

}  // namespace

void translate_verl_tools(Env& env, Translation& t) {
  // verl measures prompts with the tools of data.*, and offers those of rollout.multi_turn.*.
  for (const std::string_view leaf : {"tool_config_path", "function_tool_path"}) {
    const std::string data = fmt::format("data.{}", leaf), rollout = fmt::format("{}{}", kTable, leaf);
    if (!t.is_given(data)) continue;
    if (t.is_null(data) || t.value(data) == t.value(rollout))
      t.note(data, "prompts are measured with the tools that they offer");
    else
      t.problem(data, fmt::format("{} differs from {}", data, rollout),
                "make them equal, because prompts are measured with the tools that they offer");
  }
  std::vector<std::string_view> names;
  for (const std::string_view name : std::array{kTools, kFunctions, kInteractions}) {
    if (!t.is_null(name)) names.push_back(name);
  }
  if (names.empty()) return t.note_given({kTools, kFunctions, kInteractions}, "as here");
  if (!t.flag("rollout.multi_turn.enable"))
    return t.problem(names.front(), "rollout.multi_turn.enable is false, so no row calls a tool",
                     "set rollout.multi_turn.enable=True here (a file of --config-name is not read), or remove the "
                     "setting");
  Json params = Json::object();
  if (!t.is_null(kTools)) take_tools(env, t, params);
  if (!t.is_null(kFunctions)) params["verl_functions"] = t.text(kFunctions);
  if (!t.is_null(kInteractions)) take_interactions(env, t, params);
  if (params.empty()) return;  // a problem was reported
  t.set("rollout.multi_turn.params", params, names,
        "add allow = [\"network\"] if the code uses the network, and params.python to choose the Python");
  t.set("rollout.multi_turn.reward_weight", 0.0, names, "verl gives these rewards to the reward function alone");
}

}  // namespace mortise
