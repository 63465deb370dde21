#include "config/import/source.h"

#include <algorithm>
#include <map>

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

// Hydra writes {a:1,b:{c:2}}, where YAML wants a blank behind each key's colon. Colons in values and quotes stay.
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

// A word behind an option or a '=': a list or table in brackets, a text in quotes of its own, else a scalar. (The
// shell's quotes are gone by now and say nothing about types.)
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

// Behind the arguments: where the output goes, and the commands that follow.
void cut_at_operator(std::vector<ShellWord>& words, size_t first) {
  for (size_t i = first; i < words.size(); ++i) {
    const std::string& text = words[i].text;
    const std::string_view rest = std::string_view(text).substr(std::min(text.find_first_not_of("012"), text.size()));
    const bool is_operator = rest.starts_with('>') || text == "|" || text == "||" || text == "&&" || text == "&" ||
                             text == ";" || text == "|&" || text.starts_with("&>");
    if (words[i].quoted || !is_operator) continue;
    words.resize(i);
    return;
  }
}

Error not_resolved(const ShellWord& word) {
  return {ErrorKind::kConfig, quote(word.text) + " holds a variable of the shell", word.where, "write its value"};
}

void put(ConfigNode& table, const std::string& name, ConfigNode value) {
  table.erase(name);
  table.entries.emplace_back(name, std::move(value));
}

// --no_NAME stands for NAME = false, as argparse has it for settings that are true unless set.
bool is_negated(const std::string& name, bool has_value, const PeerRules& rules) {
  constexpr std::string_view kNo = "no_";
  return !has_value && name.starts_with(kNo) && rules.find_exact(name) == nullptr &&
         rules.find_exact(name.substr(kNo.size())) != nullptr;
}

Result<ConfigNode> read_options(const std::vector<ShellWord>& words, const PeerRules& rules) {
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
      values.push_back({name.substr(equals + 1), option.where, option.quoted});
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

// Hydra's own options, of which those are kept that say where its defaults are: hydra.config_name, hydra.config_path.
// `i` moves on where the value is a word of its own.
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
Result<ConfigNode> read_overrides(const std::vector<ShellWord>& words) {
  ConfigNode root = ConfigNode::table("");
  for (size_t i = first_argument(words, true); i < words.size(); ++i) {
    const ShellWord& word = words[i];
    if (word.text == "$@" || read_hydra_option(words, i, root)) continue;  // "$@": the caller's own arguments
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

// Two spellings of one name: which of them the framework would read, nobody can tell.
Result<> check_distinct(const std::vector<PeerSetting>& settings) {
  std::map<std::string_view, const PeerSetting*> seen;
  std::vector<Error> problems;
  for (const PeerSetting& setting : settings) {
    const auto [first, is_new] = seen.emplace(setting.name, &setting);
    if (is_new) continue;
    problems.push_back({ErrorKind::kConfig,
                        quote(setting.given) + " is given twice: also at " + first->second->where + " as " +
                            quote(first->second->given),
                        setting.where, "keep one"});
  }
  if (!problems.empty()) return join_problems(std::move(problems));
  return {};
}

}  // namespace

Result<std::vector<ShellWord>> shell_words(std::string_view text, std::string_view where) {
  std::vector<ShellWord> words;
  int64_t line = 1;
  bool in_word = false;
  char quote_mark = 0;
  const auto place = [&] { return std::string(where) + ":" + std::to_string(line); };
  const auto begin = [&] {
    if (!in_word) words.push_back({"", place(), false});
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
      words.back().quoted = true;
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
    const Json parsed = TRY(parse_json(source.text, source.where, options));
    const Result<ConfigNode> places = parse_yaml(source.text, source.where);
    root = node_of_json(parsed, source.where, places ? &*places : nullptr);
  } else if (form == Form::kYaml) {
    root = TRY(parse_yaml(source.text, source.where));
  } else {
    std::vector<ShellWord> words = TRY(shell_words(source.text, source.where));
    cut_at_operator(words, first_argument(words, source.dotted));
    root = TRY(form == Form::kOptions ? read_options(words, rules) : read_overrides(words));
  }
  if (!root.is_table()) {
    return Error{ErrorKind::kConfig, "holds " + root.describe() + ", no settings", source.where,
                 "a YAML or JSON file of settings, or a list of arguments"};
  }
  std::vector<PeerSetting> settings = Flattener(rules, source.dotted).run(root);
  TRY(check_distinct(settings));
  if (source.dotted) resolve_interpolations(settings);
  return settings;
}

}  // namespace mortise
