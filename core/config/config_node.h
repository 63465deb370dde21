// ConfigNode: a TOML document as a tree that remembers the place of each value, also after files are merged.
//
// Private to this room. toml++'s own nodes lose their positions when they are copied, and sort their keys; here the
// order is that of the file. Depth is capped, so that the recursion below is safe on any input. Plain values.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "foundation/base/result.h"
#include "foundation/formats/json.h"
#include "foundation/formats/toml.h"

namespace mortise {

struct ConfigNode {
  enum class Kind {
    kValue,  // `value`: a scalar, null, or an array without tables in it
    kTable,  // `entries`
    kList,   // `items`: an array with tables in it
    kDate,   // TOML dates and times: no key takes one
  };
  Kind kind = Kind::kValue;
  Json value;
  std::string raw;  // the text after "=" as typed, if an override set the key
  std::vector<std::pair<std::string, ConfigNode>> entries;
  std::vector<ConfigNode> items;
  std::string where;  // where the key is, "run.toml:12:3"

  // Defined in the .cpp, where the type is complete: clang looks into the pair of `entries` earlier.
  ConfigNode();
  ConfigNode(const ConfigNode&);
  ConfigNode(ConfigNode&&) noexcept;
  ConfigNode& operator=(const ConfigNode&);
  ConfigNode& operator=(ConfigNode&&) noexcept;
  ~ConfigNode();

  static ConfigNode table(std::string where);
  [[nodiscard]] bool is_table() const { return kind == Kind::kTable; }
  [[nodiscard]] ConfigNode* find(std::string_view key);
  [[nodiscard]] const ConfigNode* find(std::string_view key) const;
  void erase(std::string_view key);  // no such key is fine

  // "a table", "text 'abc'", "integer 3": for messages.
  [[nodiscard]] std::string describe() const;
};

using ConfigPath = std::vector<std::string>;  // ["reward", "0", "weight"]

// "actor.policy_loss.loss_mode", with quotes around a part that needs them; joins what toml_key writes.
std::string join_path(std::span<const std::string> path);
// The reverse. An Error without a place if it is not a dotted key.
Result<ConfigPath> split_path(std::string_view text);

ConfigNode node_from_toml(const toml::table& table, std::string_view file);

// Merges `above` into `below`: tables are merged, everything else is replaced.
void merge_over(ConfigNode& below, ConfigNode above);

// Moves the content of a top-level `actor_rollout_ref` table to the top. A key in both places is a problem.
void resolve_alias(ConfigNode& root, std::vector<Error>& problems);
void resolve_alias(ConfigPath& path);

// Plugin parameters as JSON. Dates and non-finite numbers are problems; a null removes the key.
Json node_to_json(const ConfigNode& node, std::vector<Error>& problems);

// All problems as one Error (kConfig), a line each. Precondition: not empty.
Error join_problems(std::vector<Error> problems);

}  // namespace mortise
