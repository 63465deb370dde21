#include "config/import/source.h"

#include <algorithm>

#include "config/import/interpolation.h"
#include "config/import/yaml.h"
#include "foundation/base/text.h"

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

ConfigNode node_of_json(const Json& value, const std::string& where) {
  ConfigNode node;
  node.where = where;
  if (value.is_object()) {
    node = ConfigNode::table(where);
    for (const auto& [key, child] : value.items()) node.entries.emplace_back(key, node_of_json(child, where));
    return node;
  }
  node.value = value;
  if (value.is_string()) node.raw = value.get<std::string>();
  return node;
}

// A word behind an option or a '=': a list or table in brackets, a text in quotes of its own, else a scalar. (The
// shell's quotes are gone by now and say nothing about types.)
Result<ConfigNode> word_value(const std::string& text, const std::string& where) {
  ConfigNode node;
  if (text.starts_with('[') || text.starts_with('{')) {
    Result<ConfigNode> parsed = parse_yaml(text, where);
    if (!parsed) return std::move(parsed).error();
    node = std::move(*parsed);
    // Hydra writes {a:1}, which is the key "a:1" in YAML.
    for (auto& [key, child] : node.entries) {
      const size_t colon = key.find(':');
      if (colon == std::string::npos || child.kind != ConfigNode::Kind::kValue || !child.value.is_null()) continue;
      child.raw = key.substr(colon + 1);
      child.value = yaml_scalar(child.raw);
      key.resize(colon);
    }
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

// The first argument: what follows the script or the command that is run, else the first word that looks like one.
size_t first_argument(const std::vector<ShellWord>& words, bool dotted) {
  size_t first = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i].text;
    const bool script = word.ends_with(".py") || word.find(".main_") != std::string::npos;
    const bool command =
        i > 0 && ((words[i - 1].text == "trl" && word == "grpo") ||
                  ((words[i - 1].text == "swift" || words[i - 1].text == "megatron") && word == "rlhf"));
    // The first one: values of options behind it may look the same, and so may that of an option of the launcher.
    const bool is_value = i > 0 && words[i - 1].text.starts_with("--");
    if ((script && !word.starts_with("--") && !is_value && word.find('=') == std::string::npos) || command) {
      first = i + 1;
      break;
    }
  }
  if (first > 0) return first;
  while (first < words.size()) {
    const std::string& word = words[first].text;
    if (dotted ? word.find('=') != std::string::npos || word.starts_with('~') : word.starts_with("--")) break;
    ++first;
  }
  return first;
}

Error not_resolved(const ShellWord& word) {
  return {ErrorKind::kConfig, quote(word.text) + " holds a variable of the shell", word.where, "write its value"};
}

void put(ConfigNode& table, const std::string& name, ConfigNode value) {
  table.erase(name);
  table.entries.emplace_back(name, std::move(value));
}

Result<ConfigNode> read_options(const std::vector<ShellWord>& words) {
  ConfigNode table = ConfigNode::table("");
  for (size_t i = first_argument(words, false); i < words.size();) {
    const ShellWord& option = words[i++];
    if (!option.text.starts_with("--") || option.text.size() < 3) {
      return Error{ErrorKind::kConfig, quote(option.text) + " stands where an option is due", option.where,
                   "options are written --key value"};
    }
    std::vector<ShellWord> values;
    std::string name = option.text.substr(2);
    if (const size_t equals = name.find('='); equals != std::string::npos) {
      values.push_back({name.substr(equals + 1), option.where});
      name.resize(equals);
    } else {
      while (i < words.size() && !words[i].text.starts_with("--")) values.push_back(words[i++]);
    }
    std::replace(name.begin(), name.end(), '-', '_');
    ConfigNode value;
    value.value = true;  // a flag
    value.raw = "true";
    for (const ShellWord& word : values) {
      if (word.text.find('$') != std::string::npos) return not_resolved(word);
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

// Hydra: a.b=c, +a.b=c, ++a.b=c, ~a.b.
Result<ConfigNode> read_overrides(const std::vector<ShellWord>& words) {
  ConfigNode root = ConfigNode::table("");
  for (size_t i = first_argument(words, true); i < words.size(); ++i) {
    const ShellWord& word = words[i];
    if (word.text == "$@" || word.text.starts_with("--config")) continue;  // the caller's own arguments; the base file
    const size_t equals = word.text.find('=');
    if (equals == std::string::npos && !word.text.starts_with('~')) {
      return Error{ErrorKind::kConfig, quote(word.text) + " is no override", word.where, "write key=value"};
    }
    if (word.text.find('$') != std::string::npos) return not_resolved(word);
    std::string name = word.text.substr(0, equals);
    const bool removes = name.starts_with('~');
    name.erase(0, std::min(name.find_first_not_of("+~"), name.size()));
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

class Flattener {
 public:
  Flattener(const PeerRules& rules, bool dotted) : rules_(rules), dotted_(dotted) {}

  std::vector<PeerSetting> run(const ConfigNode& root) {
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
      for (const auto& [key, child] : node.entries) add(given + "." + key, child);
      return;
    }
    settings_.push_back({std::move(name), given, json_of(node),
                         node.kind == ConfigNode::Kind::kValue && !node.value.is_array() ? node.raw : "", node.where});
  }

  const PeerRules& rules_;
  bool dotted_;
  std::vector<PeerSetting> settings_;
};

}  // namespace

Result<std::vector<ShellWord>> shell_words(std::string_view text, std::string_view where) {
  std::vector<ShellWord> words;
  int64_t line = 1;
  bool in_word = false;
  char quote_mark = 0;
  const auto place = [&] { return std::string(where) + ":" + std::to_string(line); };
  const auto begin = [&] {
    if (!in_word) words.push_back({"", place()});
    in_word = true;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char character = text[i];
    if (character == '\n') ++line;
    if (quote_mark != 0) {
      if (character == quote_mark) {
        quote_mark = 0;
      } else if (character == '\\' && quote_mark == '"' && i + 1 < text.size()) {
        words.back().text += text[++i];
      } else {
        words.back().text += character;
      }
    } else if (character == '\'' || character == '"') {
      begin();
      quote_mark = character;
    } else if (character == '\\' && i + 1 < text.size()) {
      if (text[i + 1] == '\n') {
        ++line;
        in_word = false;
      } else {
        begin();
        words.back().text += text[i + 1];
      }
      ++i;
    } else if (std::string_view(" \t\r\n").find(character) != std::string_view::npos) {
      in_word = false;
    } else if (character == '#' && !in_word) {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else {
      begin();
      words.back().text += character;
    }
  }
  if (quote_mark != 0) return Error{ErrorKind::kConfig, "a quote is not closed", place(), "close it"};
  return words;
}

Result<std::vector<PeerSetting>> read_peer_source(const PeerSource& source, const PeerRules& rules) {
  ConfigNode root;
  const Form form = form_of(source);
  if (form == Form::kJson) {
    JsonOptions options;
    options.error_kind = ErrorKind::kConfig;
    root = node_of_json(TRY(parse_json(source.text, source.where, options)), source.where);
  } else if (form == Form::kYaml) {
    root = TRY(parse_yaml(source.text, source.where));
  } else {
    const std::vector<ShellWord> words = TRY(shell_words(source.text, source.where));
    root = TRY(form == Form::kOptions ? read_options(words) : read_overrides(words));
  }
  if (!root.is_table()) {
    return Error{ErrorKind::kConfig, "holds " + root.describe() + ", no settings", source.where,
                 "a YAML or JSON file of settings, or a list of arguments"};
  }
  std::vector<PeerSetting> settings = Flattener(rules, source.dotted).run(root);
  if (source.dotted) resolve_interpolations(settings);
  return settings;
}

}  // namespace mortise
