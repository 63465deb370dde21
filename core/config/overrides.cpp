// Parses one override and writes its value into the tree.
#include "config/overrides.h"

#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {
namespace {

Error override_error(std::string what, const std::string& where, std::string next = "") {
  return {ErrorKind::kConfig, std::move(what), where, std::move(next)};
}

// Offset of the '=' that ends the key; quoted parts of the key are skipped.
size_t find_equals(std::string_view text) {
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quote != 0) {
      if (text[i] == quote) quote = 0;
    } else if (text[i] == '"' || text[i] == '\'') {
      quote = text[i];
    } else if (text[i] == '=') {
      return i;
    }
  }
  return std::string_view::npos;
}

// Splits at commas that lie outside brackets and quotes.
std::vector<std::string_view> split_list_text(std::string_view text) {
  std::vector<std::string_view> pieces;
  int depth = 0;
  char quote = 0;
  size_t start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char character = text[i];
    if (quote != 0) {
      if (character == quote) quote = 0;
    } else if (character == '"' || character == '\'') {
      quote = character;
    } else if (character == '[' || character == '{') {
      ++depth;
    } else if (character == ']' || character == '}') {
      --depth;
    } else if (character == ',' && depth == 0) {
      pieces.push_back(trim(text.substr(start, i - start)));
      start = i + 1;
    }
  }
  const std::string_view last = trim(text.substr(start));
  if (!last.empty() || !pieces.empty()) pieces.push_back(last);
  return pieces;
}

// Reads the value as TOML, if it is TOML. A line break is refused, because a second key could follow it.
bool read_toml_value(std::string_view text, const std::string& where, ConfigNode& out) {
  if (text.find_first_of("\r\n") != std::string_view::npos) return false;
  Result<toml::table> parsed = parse_toml("value = " + std::string(text), where);
  if (!parsed || parsed->size() != 1 || !parsed->contains("value")) return false;
  ConfigNode root = node_from_toml(*parsed, where);
  out = std::move(root.entries.front().second);
  return true;
}

void set_places(ConfigNode& node, const std::string& where) {
  node.where = where;
  for (auto& [key, child] : node.entries) set_places(child, where);
  for (ConfigNode& item : node.items) set_places(item, where);
}

Result<ConfigNode> read_value(std::string_view text, const std::string& where, int depth) {
  ConfigNode node;
  node.raw = std::string(text);
  if (read_toml_value(text, where, node) && node.kind != ConfigNode::Kind::kDate) {
    set_places(node, where);
    node.raw = std::string(text);
    return node;
  }
  node = ConfigNode{};
  node.raw = std::string(text);
  node.where = where;
  const std::string lower = to_lower_ascii(text);
  if (lower == "null" || lower == "none" || lower == "true" || lower == "false") {
    if (lower[0] != 'n') node.value = lower == "true";
  } else if (const std::optional<double> number = parse_f64(text)) {
    node.value = *number;  // ".5" and "5.", which are not TOML
  } else if (text.starts_with('[') && text.ends_with(']') && depth < 8) {
    node.value = Json::array();
    for (const std::string_view piece : split_list_text(text.substr(1, text.size() - 2))) {
      ConfigNode item = TRY(read_value(piece, where, depth + 1));
      if (item.kind != ConfigNode::Kind::kValue) {
        return override_error("a list of tables must be written as TOML", where, "write [{use = \"length\"}]");
      }
      node.value.push_back(std::move(item.value));
    }
  } else if (!text.empty() && std::string_view("[{\"'").find(text.front()) != std::string_view::npos) {
    return override_error(fmt::format("the value {} is not closed, or is not TOML", quote(text)), where,
                          "quote the whole argument for the shell; write lists as [a, b] and tables as {a = 1}");
  } else {
    node.value = std::string(text);
  }
  return node;
}

// The node at `part` of a table or list. Makes it if it does not exist.
Result<ConfigNode*> step_into(ConfigNode& parent, const std::string& part, const std::string& path,
                              const std::string& where) {
  const bool empty_list = parent.kind == ConfigNode::Kind::kValue && parent.value.is_array() && parent.value.empty();
  if (parent.kind == ConfigNode::Kind::kList || empty_list) {
    const std::optional<uint64_t> index = parse_u64(part);
    if (!index || *index > parent.items.size()) {
      return override_error(fmt::format("'{}' has {} entries, but no '{}'", path, parent.items.size(), part), where,
                            fmt::format("use a number from 0 to {} (the last one adds an entry)", parent.items.size()));
    }
    parent.kind = ConfigNode::Kind::kList;
    if (*index == parent.items.size()) parent.items.push_back(ConfigNode::table(where));
    return &parent.items[*index];
  }
  if (!parent.is_table()) {
    return override_error(fmt::format("'{}' is {} and has no keys (set at {})", path, parent.describe(), parent.where),
                          where);
  }
  if (ConfigNode* child = parent.find(part)) return child;
  return &parent.entries.emplace_back(part, ConfigNode::table(where)).second;
}

Result<> remove_key(ConfigNode& root, std::span<const std::string> path, const std::string& where) {
  ConfigNode* node = &root;
  for (const std::string& part : path.first(path.size() - 1)) {
    const std::optional<uint64_t> index = parse_u64(part);
    if (node->kind == ConfigNode::Kind::kList && index && *index < node->items.size()) {
      node = &node->items[*index];
    } else {
      node = node->find(part);
    }
    if (node == nullptr) break;
  }
  if (node != nullptr && node->kind == ConfigNode::Kind::kList) {
    const std::optional<uint64_t> index = parse_u64(path.back());
    if (index && *index < node->items.size()) {
      node->items.erase(node->items.begin() + static_cast<std::ptrdiff_t>(*index));
      return {};
    }
  } else if (node != nullptr && node->find(path.back()) != nullptr) {
    node->erase(path.back());
    return {};
  }
  return override_error(fmt::format("'{}' is not set, so it cannot be removed", join_path(path)), where);
}

}  // namespace

bool is_override(std::string_view argument) {
  return argument.starts_with('~') || find_equals(argument) != std::string_view::npos;
}

Result<> apply_override(ConfigNode& root, std::string_view text, const std::string& where) {
  if (find_invalid_utf8(text)) return override_error("the override is not UTF-8", where);
  const bool removes = text.starts_with('~');
  while (text.starts_with('+')) text.remove_prefix(1);
  if (removes) text.remove_prefix(1);
  const size_t equals = find_equals(text);
  if (!removes && equals == std::string_view::npos) {
    return override_error("an override must have the form key=value", where, "for example: rollout.n=16");
  }
  Result<ConfigPath> parsed = split_path(trim(text.substr(0, std::min(equals, text.size()))));
  if (!parsed) {
    Error error = std::move(parsed).error();
    error.where = where;
    return error;
  }
  ConfigPath path = std::move(parsed).value();
  resolve_alias(path);
  if (removes) return remove_key(root, path, where);

  ConfigNode value = TRY(read_value(trim(text.substr(equals + 1)), where, 0));
  ConfigNode* node = &root;
  for (size_t i = 0; i < path.size(); ++i) {
    // `reward.0.use=length` starts the list if there is none yet.
    if (i == 0 && path[0] == "reward" && path.size() > 1 && node->find("reward") == nullptr) {
      ConfigNode list = ConfigNode::table(where);
      list.kind = ConfigNode::Kind::kList;
      node->entries.emplace_back("reward", std::move(list));
    }
    node = TRY(step_into(*node, path[i], join_path(std::span(path).first(i)), where));
  }
  merge_over(*node, std::move(value));
  return {};
}

}  // namespace mortise
