// Recognizes the form of a file, and reads its settings into a tree.
#include "import/source.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "foundation/base/text.h"
#include "import/interpolation.h"
#include "import/yaml.h"

namespace mortise {
namespace {

Json json_of(const ConfigNode& node) {
  if (node.kind == ConfigNode::Kind::kTable) {
    Json object = Json::object();
    for (const auto& [key, child] : node.entries) object[key] = json_of(child);
    return object;
  }
  if (node.kind != ConfigNode::Kind::kList) return node.value;
  Json list = Json::array();
  for (const ConfigNode& item : node.items) list.push_back(json_of(item));
  return list;
}

// `places`: the same text read as YAML, which knows lines and columns; null where that did not succeed.
ConfigNode node_of_json(const Json& value, const std::string& where, const ConfigNode* places) {
  ConfigNode node;
  node.where = places != nullptr ? places->where : where;
  if (value.is_object()) {
    node = ConfigNode::table(node.where);
    for (const auto& [key, child] : value.items()) {
      const ConfigNode* place = places != nullptr && places->is_table() ? places->find(key) : nullptr;
      node.entries.emplace_back(key, node_of_json(child, where, place));
    }
    return node;
  }
  node.value = value;
  if (value.is_string()) node.raw = value.get<std::string>();
  return node;
}

// Hydra writes {a:1,b:{c:2}}, where YAML wants a blank after each key's colon. Colons in values and quotes do not
// change.
std::string with_spaced_keys(std::string_view text) {
  std::string out, open;  // open: the brackets that are
  bool in_key = false;
  char quote_mark = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char character = text[i];
    out += character;
    if (quote_mark != 0) {
      if (character == '\\' && quote_mark == '"' && i + 1 < text.size()) {
        out += text[++i];
      } else if (character == quote_mark) {
        quote_mark = 0;
      }
    } else if (character == '\'' || character == '"') {
      quote_mark = character;
    } else if (character == '{' || character == '[') {
      open += character;
      in_key = character == '{';
    } else if (character == '}' || character == ']') {
      if (!open.empty()) open.pop_back();
      in_key = false;
    } else if (character == ',') {
      in_key = open.ends_with('{');
    } else if (character == ':' && in_key) {
      out += ' ';
      in_key = false;
    }
  }
  return out;
}

// A word after an option or a '=': a list or table in brackets, a text in its own quotes, else a scalar. (The shell's
// quotes are already removed and say nothing about types.)
Result<ConfigNode> word_value(const std::string& text, const std::string& where) {
  ConfigNode node;
  if (text.starts_with('[') || text.starts_with('{')) {
    Result<ConfigNode> parsed = parse_yaml(with_spaced_keys(text), where);
    if (!parsed) return std::move(parsed).error();
    node = std::move(*parsed);
  } else if (text.size() > 1 && (text.front() == '\'' || text.front() == '"') && text.front() == text.back()) {
    node.raw = text.substr(1, text.size() - 2);
    node.value = node.raw;
  } else {
    node.raw = text;
    node.value = yaml_scalar(text);
  }
  node.where = where;
  return node;
}

Error not_known(const ShellWord& word) {
  return {ErrorKind::kConfig, fmt::format("{} is not known: {}", quote(word.text), word.unknown), word.where,
          unknown_word_hint(word.name)};
}

void put(ConfigNode& table, const std::string& name, ConfigNode value) {
  table.erase(name);
  table.entries.emplace_back(name, std::move(value));
}

// --no_NAME means NAME = false, as in argparse for settings that are true by default.
bool is_negated(const std::string& name, bool has_value, const PeerRules& rules) {
  constexpr std::string_view kNo = "no_";
  return !has_value && name.starts_with(kNo) && rules.find_exact(name) == nullptr &&
         rules.find_exact(name.substr(kNo.size())) != nullptr;
}

// A word that is not known stays a text. `unknown` remembers why, by the place of the setting.
using UnknownWords = std::map<std::string, ShellWord, std::less<>>;

void note_unknown(UnknownWords& unknown, const std::string& name, const ShellWord& word) {
  if (word.unknown.empty())
    unknown.erase(name);
  else
    unknown.insert_or_assign(name, word);
}

Result<ConfigNode> read_options(const std::vector<ShellWord>& words, const PeerRules& rules, UnknownWords& unknown) {
  ConfigNode table = ConfigNode::table("");
  for (size_t i = 0; i < words.size();) {
    const ShellWord& option = words[i++];
    if (!option.text.starts_with("--") || option.text.size() < 3) {
      if (!option.unknown.empty()) return not_known(option);
      return Error{ErrorKind::kConfig, "expected an option, found " + quote(option.text), option.where,
                   "options are written --key value"};
    }
    std::vector<ShellWord> values;
    std::string name = option.text.substr(2);
    if (const size_t equals = name.find('='); equals != std::string::npos) {
      values.push_back({name.substr(equals + 1), option.where, option.unknown, option.name});
      name.resize(equals);
    } else {
      while (i < words.size() && !words[i].text.starts_with("--")) values.push_back(words[i++]);
    }
    std::replace(name.begin(), name.end(), '-', '_');
    ConfigNode value;
    const bool negated = is_negated(name, !values.empty(), rules);
    if (negated) name.erase(0, 3);
    value.value = !negated;  // a flag
    value.raw = negated ? "false" : "true";
    unknown.erase(name);
    for (const ShellWord& word : values) {
      if (!word.unknown.empty()) note_unknown(unknown, name, word);
    }
    if (values.size() == 1) value = TRY(word_value(values[0].text, option.where));
    if (values.size() > 1) {
      value.value = Json::array();
      value.raw.clear();
      for (const ShellWord& word : values) value.value.push_back(yaml_scalar(word.text));
    }
    value.where = option.where;
    put(table, name, std::move(value));
  }
  return table;
}

// Hydra's own options. Keeps those that name the place of its defaults: hydra.config_name, hydra.config_path. Advances
// `i` if the value is a separate word.
bool read_hydra_option(const std::vector<ShellWord>& words, size_t& i, ConfigNode& root) {
  const std::string& word = words[i].text;
  const std::string option = word.substr(0, word.find('='));
  const bool name = option == "--config-name" || option == "-cn";
  if (!name && option != "--config-path" && option != "-cp" && option != "--config-dir" && option != "-cd")
    return false;
  std::string given;
  if (option.size() < word.size()) {
    given = word.substr(option.size() + 1);
  } else if (i + 1 < words.size()) {
    given = words[++i].text;
  }
  if (root.find("hydra") == nullptr) put(root, "hydra", ConfigNode::table(words[i].where));
  ConfigNode value;
  value.value = given;
  value.raw = given;
  value.where = words[i].where;
  put(*root.find("hydra"), name ? "config_name" : "config_path", std::move(value));
  return true;
}

// Hydra: a.b=c, +a.b=c, ++a.b=c, ~a.b.
Result<ConfigNode> read_overrides(const std::vector<ShellWord>& words, UnknownWords& unknown) {
  ConfigNode root = ConfigNode::table("");
  for (size_t i = 0; i < words.size(); ++i) {
    const ShellWord& word = words[i];
    if (read_hydra_option(words, i, root)) continue;
    const size_t equals = word.text.find('=');
    if (equals == std::string::npos && !word.unknown.empty()) return not_known(word);
    if (equals == std::string::npos && !word.text.starts_with('~')) {
      return Error{ErrorKind::kConfig, quote(word.text) + " is not key=value", word.where, "write key=value"};
    }
    std::string name = word.text.substr(0, equals);
    const bool removes = name.starts_with('~');
    name.erase(0, std::min(name.find_first_not_of("+~"), name.size()));
    note_unknown(unknown, name, word);
    ConfigNode* table = &root;
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.')) {
      const std::string part = name.substr(0, dot);
      if (table->find(part) == nullptr || !table->find(part)->is_table())
        put(*table, part, ConfigNode::table(word.where));
      table = table->find(part);
      name.erase(0, dot + 1);
    }
    if (removes) {
      table->erase(name);
    } else {
      ConfigNode value = TRY(word_value(word.text.substr(equals + 1), word.where));
      put(*table, name, std::move(value));
    }
  }
  return root;
}

enum class Form { kYaml, kJson, kOptions, kOverrides };

// By the name's ending, else by what the lines look like.
Form form_of(const PeerSource& source) {
  const std::string_view text = trim(source.text);
  if (source.where.ends_with(".json") || text.starts_with('{')) return Form::kJson;
  if (source.where.ends_with(".yaml") || source.where.ends_with(".yml")) return Form::kYaml;
  if (source.where.ends_with(".sh") || source.where.ends_with(".bash"))
    return source.dotted ? Form::kOverrides : Form::kOptions;
  for (const std::string_view whole : split(text, '\n')) {
    const std::string_view line = trim(whole);
    const std::string_view word = line.substr(0, line.find_first_of(" \t"));
    if (line.starts_with('#')) continue;
    if (!source.dotted && (line.starts_with("--") || line.find(" --") != std::string_view::npos)) return Form::kOptions;
    const bool override_like = word.find('=') != std::string_view::npos && word.find(':') > word.find('=');
    if (source.dotted && (override_like || word == "python" || word == "python3" || word == "set")) {
      return Form::kOverrides;
    }
  }
  return Form::kYaml;
}

// The module says which file it reads if the command does not. verl's main_ppo reads ppo_trainer, as without this setting.
void put_defaults_of(const std::string& program, const std::string& where, ConfigNode& root) {
  const ConfigNode* hydra = root.find("hydra");
  if (hydra != nullptr && hydra->is_table() && hydra->find("config_name") != nullptr) return;
  for (const auto& [part, name] : {std::pair("one_step_off_policy", "one_step_off_ppo_trainer"),
                                   std::pair("fully_async_policy", "fully_async_ppo_trainer")}) {
    if (program.find(part) == std::string::npos) continue;
    if (hydra == nullptr) put(root, "hydra", ConfigNode::table(where));
    ConfigNode value;
    value.value = value.raw = name;
    value.where = where;
    put(*root.find("hydra"), "config_name", std::move(value));
  }
}

class Flattener {
 public:
  Flattener(const PeerRules& rules, bool dotted) : rules_(rules), dotted_(dotted) {}

  std::vector<PeerSetting> run(const ConfigNode& root, const UnknownWords& unknown) {
    unknown_ = &unknown;
    for (const auto& [key, child] : root.entries) add(key, child);
    return std::move(settings_);
  }

 private:
  void add(const std::string& given, const ConfigNode& node) {
    constexpr std::string_view kPrefix = "actor_rollout_ref.";
    std::string name = given;
    if (dotted_ && name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
    const bool goes_down = given == "actor_rollout_ref" || rules_.has_below(name) ||
                           (rules_.find_exact(name) == nullptr && rules_.find(name) != nullptr);
    if (dotted_ && node.is_table() && goes_down) {
      for (const auto& [key, child] : node.entries) add(fmt::format("{}.{}", given, key), child);
      return;
    }
    settings_.push_back({std::move(name), given, json_of(node),
                         node.kind == ConfigNode::Kind::kValue && !node.value.is_array() ? node.raw : "", node.where,
                         "", ""});
    if (const auto found = unknown_->find(given); found != unknown_->end()) {
      settings_.back().unknown = found->second.unknown;
      settings_.back().hint = unknown_word_hint(found->second.name);
    }
  }

  const PeerRules& rules_;
  bool dotted_;
  const UnknownWords* unknown_ = nullptr;
  std::vector<PeerSetting> settings_;
};

// Two spellings of one name. It is unclear which of them the framework would read.
Result<> check_distinct(const std::vector<PeerSetting>& settings) {
  std::map<std::string_view, const PeerSetting*> seen;
  std::vector<Error> problems;
  for (const PeerSetting& setting : settings) {
    const auto [first, is_new] = seen.emplace(setting.name, &setting);
    if (is_new) continue;
    problems.push_back({ErrorKind::kConfig,
                        fmt::format("{} is given twice: also at {} as {}", quote(setting.given), first->second->where,
                                    quote(first->second->given)),
                        setting.where, "keep one"});
  }
  if (!problems.empty()) return join_problems(std::move(problems));
  return {};
}

}  // namespace

std::string unknown_word_hint(const std::string& variable) {
  return variable.empty() ? "write its value into the script"
                          : fmt::format("give its value with --set {}=VALUE", variable);
}

Result<PeerFile> read_peer_source(const PeerSource& source, const PeerRules& rules) {
  PeerFile file;
  ConfigNode root;
  UnknownWords unknown;
  const Form form = form_of(source);
  if (form == Form::kJson) {
    JsonOptions options;
    options.error_kind = ErrorKind::kConfig;
    const Json parsed = TRY(parse_json(source.text, source.where, options));
    const Result<ConfigNode> places = parse_yaml(source.text, source.where);
    root = node_of_json(parsed, source.where, places ? &*places : nullptr);
  } else if (form == Form::kYaml) {
    root = TRY(parse_yaml(source.text, source.where));
  } else {
    const ShellScript script = TRY(read_shell(source.text, source.where, source.variables, source.environment));
    TrainingCommand command = find_training(script, source.dotted);
    root = TRY(form == Form::kOptions ? read_options(command.arguments, rules, unknown)
                                      : read_overrides(command.arguments, unknown));
    if (form == Form::kOverrides) put_defaults_of(command.program, source.where, root);
    file.launch = std::move(command.launch);
    file.num_others = command.num_others;
  }
  if (!root.is_table()) {
    return Error{ErrorKind::kConfig, fmt::format("holds {} instead of settings", root.describe()), source.where,
                 "a YAML or JSON file of settings, or a list of arguments"};
  }
  file.settings = Flattener(rules, source.dotted).run(root, unknown);
  TRY(check_distinct(file.settings));
  if (source.dotted) resolve_interpolations(file.settings);
  if (source.launches) take_launch_settings(file.settings, file.launch);
  return file;
}

}  // namespace mortise
