// ConfigReader: typed, defaulted access to the keys of a config.json; null counts as absent, as in transformers.
// Errors name file and key. Thread rule: read-only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "foundation/formats/json.h"

namespace mortise {

class ConfigReader {
 public:
  // Borrows both. `prefix` is put before keys in errors ("rope_scaling.").
  ConfigReader(const Json& object, std::string where, std::string prefix = {})
      : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {}

  [[nodiscard]] const Json* find(std::string_view key) const;  // null where absent or null
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  [[nodiscard]] bool present(std::string_view key) const { return json_find(object_, key) != nullptr; }  // maybe null
  [[nodiscard]] bool is_null(std::string_view key) const;  // there, and null

  Result<int64_t> positive(std::string_view key) const;  // must be there
  Result<int64_t> whole(std::string_view key) const;     // must be there; 0 or more
  Result<int64_t> positive_or(std::string_view key, int64_t fallback) const;
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<bool> flag_or(std::string_view key, bool fallback) const;
  Result<std::string> text_or(std::string_view key, std::string_view fallback) const;
  Result<std::optional<int64_t>> token_id(std::string_view key) const;
  Result<std::vector<int64_t>> token_ids(std::string_view key) const;  // a number or a list

  [[nodiscard]] Error wrong(std::string_view key, std::string_view must_be) const;
  // "key 'x' = 3 changes the numbers and is not supported".
  [[nodiscard]] Error unsupported(std::string_view key, std::string_view supported) const;
  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
  std::string prefix_;
};

}  // namespace mortise
