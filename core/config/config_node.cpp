// Converts toml++ tables to ConfigNode, merges trees, and describes values for messages.
#include "config/config_node.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "config/toml_text.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::string_view kAlias = "actor_rollout_ref";

std::string position_text(std::string_view file, const toml::source_region& source) {
  std::string text(file);
  if (source.begin.line == 0) return text;
  return fmt::format("{}:{}:{}", text, source.begin.line, source.begin.column);
}

bool has_table(const toml::node& node, int depth) {
  if (node.is_table() || depth > kMaxDepth) return true;
  const toml::array* array = node.as_array();
  return array != nullptr &&
         std::ranges::any_of(*array, [depth](const toml::node& item) { return has_table(item, depth + 1); });
}

class TomlConverter {
 public:
  explicit TomlConverter(std::string_view file) : file_(file) {}

  ConfigNode convert(const toml::node& node, const toml::source_region& place, int depth) {
    ConfigNode out;
    out.where = position_text(file_, place);
    if (const toml::table* table = node.as_table()) {
      convert_table(*table, out, depth);
    } else if (const toml::array* array = node.as_array()) {
      if (has_table(node, depth)) {
        out.kind = ConfigNode::Kind::kList;
        if (depth > kMaxDepth) return out;
        for (const toml::node& item : *array) out.items.push_back(convert(item, item.source(), depth + 1));
      } else {
        convert_array(*array, out, depth);
      }
    } else {
      convert_scalar(node, out);
    }
    return out;
  }

 private:
  void convert_table(const toml::table& table, ConfigNode& out, int depth) {
    out.kind = ConfigNode::Kind::kTable;
    if (depth > kMaxDepth) return;  // no key is so deep: the loader refuses a table above this one
    struct Entry {
      const toml::key* key;
      const toml::node* node;
    };
    std::vector<Entry> entries;
    for (auto&& [key, node] : table) entries.push_back({&key, &node});
    std::ranges::stable_sort(entries, [](const Entry& a, const Entry& b) {
      const toml::source_position& left = a.key->source().begin;
      const toml::source_position& right = b.key->source().begin;
      return std::pair(left.line, left.column) < std::pair(right.line, right.column);
    });
    for (const Entry& entry : entries) {
      out.entries.emplace_back(std::string(entry.key->str()), convert(*entry.node, entry.key->source(), depth + 1));
    }
  }

  void convert_array(const toml::array& array, ConfigNode& out, int depth) {
    out.value = Json::array();
    for (const toml::node& item : array) {
      ConfigNode converted = convert(item, item.source(), depth + 1);
      if (converted.kind == ConfigNode::Kind::kDate) {
        out.kind = ConfigNode::Kind::kDate;
        return;
      }
      out.value.push_back(std::move(converted.value));
    }
  }

  static void convert_scalar(const toml::node& node, ConfigNode& out) {
    if (const auto* text = node.as_string()) {
      out.value = text->get();
    } else if (const auto* integer = node.as_integer()) {
      out.value = integer->get();
    } else if (const auto* number = node.as_floating_point()) {
      out.value = number->get();
    } else if (const auto* boolean = node.as_boolean()) {
      out.value = boolean->get();
    } else {
      out.kind = ConfigNode::Kind::kDate;
    }
  }

  std::string file_;
};

bool all_finite(const Json& value) {
  if (value.is_array()) return std::ranges::all_of(value, all_finite);
  return !value.is_number_float() || std::isfinite(value.get<double>());
}

std::string describe_value(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case Json::value_t::string:
      return "the text " + quote(value.get_ref<const std::string&>(), 40);
    case Json::value_t::array:
      return "a list";
    case Json::value_t::number_float:
      return "the number " + toml_value(value);
    default:
      return "the integer " + toml_value(value);
  }
}

}  // namespace

ConfigNode::ConfigNode() = default;
ConfigNode::ConfigNode(const ConfigNode&) = default;
ConfigNode::ConfigNode(ConfigNode&&) noexcept = default;
ConfigNode& ConfigNode::operator=(const ConfigNode&) = default;
ConfigNode& ConfigNode::operator=(ConfigNode&&) noexcept = default;
ConfigNode::~ConfigNode() = default;

ConfigNode ConfigNode::table(std::string where) {
  ConfigNode node;
  node.kind = Kind::kTable;
  node.where = std::move(where);
  return node;
}

const ConfigNode* ConfigNode::find(std::string_view key) const {
  for (const auto& [name, node] : entries) {
    if (name == key) return &node;
  }
  return nullptr;
}

ConfigNode* ConfigNode::find(std::string_view key) { return const_cast<ConfigNode*>(std::as_const(*this).find(key)); }

void ConfigNode::erase(std::string_view key) {
  std::erase_if(entries, [key](const auto& entry) { return entry.first == key; });
}

std::string ConfigNode::describe() const {
  switch (kind) {
    case Kind::kTable:
      return "a table";
    case Kind::kList:
      return "a list of tables";
    case Kind::kDate:
      return "a date or time";
    case Kind::kValue:
      break;
  }
  return describe_value(value);
}

std::string join_path(std::span<const std::string> path) {
  std::string text;
  for (const std::string& part : path) text.append(text.empty() ? "" : ".").append(toml_key(part));
  return text;
}

Result<ConfigPath> split_path(std::string_view text) {
  const auto bad = [text](std::string what) {
    return Error{ErrorKind::kConfig, fmt::format("{} is not a key: {}", quote(text), what), "",
                 "write a key as table.name"};
  };
  ConfigPath path;
  size_t at = 0;
  while (true) {
    std::string part;
    if (at < text.size() && (text[at] == '"' || text[at] == '\'')) {
      const size_t end = text.find(text[at], at + 1);
      if (end == std::string_view::npos) return bad("a quote is not closed");
      part = text.substr(at + 1, end - at - 1);
      at = end + 1;
    } else {
      const size_t end = std::min(text.find('.', at), text.size());
      part = trim(text.substr(at, end - at));
      if (part.empty()) return bad("a part is empty");
      at = end;
    }
    path.push_back(std::move(part));
    if (path.size() > kMaxDepth) return bad("it has too many parts");
    if (at == text.size()) return path;
    if (text[at] != '.') return bad("a '.' must follow a quoted part");
    ++at;
  }
}

ConfigNode node_from_toml(const toml::table& table, std::string_view file) {
  return TomlConverter(file).convert(table, toml::source_region{}, 0);
}

void merge_over(ConfigNode& below, ConfigNode above) {
  if (!below.is_table() || !above.is_table()) {
    below = std::move(above);
    return;
  }
  below.where = above.where;
  for (auto& [key, node] : above.entries) {
    if (ConfigNode* existing = below.find(key)) {
      merge_over(*existing, std::move(node));
    } else {
      below.entries.emplace_back(key, std::move(node));
    }
  }
}

namespace {

// As merge_over, but a value in both is a problem.
void merge_alias(ConfigNode& into, ConfigNode from, const std::string& key, std::vector<Error>& problems) {
  if (!into.is_table() || !from.is_table()) {
    problems.push_back({ErrorKind::kConfig,
                        fmt::format("'{}' is set twice, here and as '{}.{}' at {}", key, kAlias, key, from.where),
                        into.where, "remove one of them"});
    return;
  }
  for (auto& [name, node] : from.entries) {
    if (ConfigNode* existing = into.find(name)) {
      merge_alias(*existing, std::move(node), key.empty() ? name : fmt::format("{}.{}", key, name), problems);
    } else {
      into.entries.emplace_back(name, std::move(node));
    }
  }
}

}  // namespace

void resolve_alias(ConfigNode& root, std::vector<Error>& problems) {
  ConfigNode* alias = root.find(kAlias);
  if (alias == nullptr) return;
  ConfigNode content = std::move(*alias);
  root.erase(kAlias);
  if (content.is_table()) {
    merge_alias(root, std::move(content), "", problems);
  } else {
    problems.push_back({ErrorKind::kConfig, fmt::format("'{}' is a table, not {}", kAlias, content.describe()),
                        content.where, "write [actor], [rollout], ... instead"});
  }
}

void resolve_alias(ConfigPath& path) {
  if (path.size() > 1 && path.front() == kAlias) path.erase(path.begin());
}

Json node_to_json(const ConfigNode& node, std::vector<Error>& problems) {
  switch (node.kind) {
    case ConfigNode::Kind::kDate:
      problems.push_back(
          {ErrorKind::kConfig, "a parameter cannot be a date or time", node.where, "write it in quotes"});
      return nullptr;
    case ConfigNode::Kind::kValue:
      if (all_finite(node.value)) return node.value;
      if (!std::isnan(node.value.get<double>())) return node.value.get<double>() > 0 ? "inf" : "-inf";
      problems.push_back(
          {ErrorKind::kConfig, "a parameter must be a number, but is nan", node.where, "write a finite number"});
      return nullptr;
    case ConfigNode::Kind::kList: {
      Json list = Json::array();
      for (const ConfigNode& item : node.items) list.push_back(node_to_json(item, problems));
      return list;
    }
    case ConfigNode::Kind::kTable:
      break;
  }
  Json object = Json::object();
  for (const auto& [key, child] : node.entries) {
    Json value = node_to_json(child, problems);
    if (!value.is_null()) object[key] = std::move(value);
  }
  return object;
}

Error join_problems(std::vector<Error> problems) {
  if (problems.size() == 1) return std::move(problems.front());
  std::string text = std::to_string(problems.size()) + " problems in the configuration:";
  for (const Error& problem : problems) text += "\n  " + problem.to_string();
  return {ErrorKind::kConfig, std::move(text), "", ""};
}

}  // namespace mortise
