// Reads single fields of a table with their types.
#include "packs/toml_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "foundation/base/text.h"

namespace mortise {

std::string toml_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04X", byte);
      out += escape.data();
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string toml_list(const std::vector<std::string>& items) {
  std::vector<std::string> quoted;
  for (const std::string& item : items) quoted.push_back(toml_quoted(item));
  return fmt::format("[{}]", join(quoted, ", "));
}

Error TomlFields::fault(std::string what, const toml::node* at) const {
  const toml::node& node = at == nullptr ? static_cast<const toml::node&>(table_) : *at;
  return broken_rule(rule_, std::move(what), toml_where(where_, node), "correct the TOML there");
}

Result<> TomlFields::only(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, node] : table_) {
    if (std::find(keys.begin(), keys.end(), std::string_view(key)) == keys.end())
      return fault("there is no key " + quote(std::string_view(key)), &node);
  }
  return {};
}

Result<> TomlFields::text(std::string_view key, std::string& out, bool needed) const {
  const toml::node* node = table_.get(key);
  if (node == nullptr) return needed ? Result<>(fault(fmt::format("the key {} is missing", quote(key)))) : Result<>();
  const auto* value = node->as_string();
  if (value == nullptr) return fault(quote(key) + " must be a text", node);
  out = value->get();
  return {};
}

Result<> TomlFields::number(std::string_view key, uint64_t& out, bool needed) const {
  const toml::node* node = table_.get(key);
  if (node == nullptr) return needed ? Result<>(fault(fmt::format("the key {} is missing", quote(key)))) : Result<>();
  const auto* value = node->as_integer();
  if (value == nullptr || value->get() < 0) return fault(quote(key) + " must be a whole number", node);
  out = static_cast<uint64_t>(value->get());
  return {};
}

Result<> TomlFields::texts(std::string_view key, std::vector<std::string>& out) const {
  const toml::node* node = table_.get(key);
  if (node == nullptr) return {};
  const auto* list = node->as_array();
  if (list == nullptr) return fault(quote(key) + " must be a list of texts", node);
  for (const toml::node& item : *list) {
    const auto* value = item.as_string();
    if (value == nullptr) return fault(quote(key) + " must be a list of texts", &item);
    out.push_back(value->get());
  }
  return {};
}

Result<std::vector<const toml::table*>> TomlFields::tables(std::string_view key) const {
  std::vector<const toml::table*> out;
  const toml::node* node = table_.get(key);
  if (node == nullptr) return out;
  const auto* list = node->as_array();
  if (list == nullptr) return fault(quote(key) + " must be a list of tables", node);
  for (const toml::node& item : *list) {
    if (!item.is_table()) return fault(quote(key) + " must be a list of tables", &item);
    out.push_back(item.as_table());
  }
  return out;
}

}  // namespace mortise
