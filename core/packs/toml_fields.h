// Strict reading of a TOML table from outside: known keys, right types, and errors with their rule.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/formats/toml.h"
#include "packs/rules.h"

namespace mortise {

// A text as a basic string of TOML.
[[nodiscard]] std::string toml_quoted(std::string_view text);
[[nodiscard]] std::string toml_list(const std::vector<std::string>& items);

class TomlFields {
 public:
  TomlFields(const toml::table& table, std::string_view where, PackRule rule)
      : table_(table), where_(where), rule_(rule) {}

  [[nodiscard]] Result<> only(std::initializer_list<std::string_view> keys) const;
  // A key that is not there leaves `out` as it is, unless it is needed.
  [[nodiscard]] Result<> text(std::string_view key, std::string& out, bool needed = false) const;
  [[nodiscard]] Result<> number(std::string_view key, uint64_t& out, bool needed = false) const;
  [[nodiscard]] Result<> texts(std::string_view key, std::vector<std::string>& out) const;
  [[nodiscard]] Result<std::vector<const toml::table*>> tables(std::string_view key) const;
  [[nodiscard]] Error fault(std::string what, const toml::node* at = nullptr) const;
  [[nodiscard]] const toml::table& table() const { return table_; }

 private:
  const toml::table& table_;
  std::string_view where_;
  PackRule rule_;
};

}  // namespace mortise
