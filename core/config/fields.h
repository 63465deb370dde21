// The list of all keys: name, type, range, choices, text. One entry per key; the defaults are those of run_config.h.
//
// Everything that needs to know a key reads this list: the loader, overrides, `config explain|schema|show`, the tests.
// The entries are written in fields_run.cpp (model, data), fields_algorithm.cpp, fields_train.cpp (actor, ref, critic)
// and fields_engine.cpp (the rest). Built once, on first use (about 100 entries); lookups are by hash. Thread rule:
// immutable after that, any thread.
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/run_config.h"

namespace mortise {

// Where a key's value lives in a struct. The order is that of FieldType.
using FieldRef =
    std::variant<bool*, int64_t*, double*, std::string*, std::chrono::milliseconds*, std::optional<int64_t>*,
                 std::optional<double>*, std::optional<std::string>*, std::vector<std::string>*, std::vector<double>*,
                 Json*, std::optional<bool>*, std::vector<int64_t>*>;

// A key, or (type Json) a table of plugin parameters that holds any keys.
struct Field {
  std::string key;   // "actor.optim.lr"; of a reward "reward.*.weight"
  std::string doc;   // what it does, in full sentences; unit included
  std::string verl;  // verl's full name where it is not this one (with or without actor_rollout_ref.); may be empty
  std::string trl;   // the name in TRL's GRPOConfig; may be empty
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_is_open = false;  // the value must be above min, not equal
  bool max_is_open = false;
  size_t num_items = 0;                        // lists: exactly so many; 0 = any number
  std::vector<std::string> choices;            // the only texts allowed (list keys: for each item)
  std::string plugin_kind;                     // the text names a plugin: "policy_loss", "kl_estimator", ...
  bool takes_number = false;                   // a text that may be written as a number
  bool inline_params = false;                  // a Json whose keys stand beside the other keys of the parent table
  std::function<FieldRef(RunConfig&)> in_run;  // null for the keys of a reward
  std::function<FieldRef(RewardConfig&)> in_reward;  // null for all others

  // "integer", "number", "text", "list of texts", ...
  [[nodiscard]] std::string type_name() const;
  [[nodiscard]] bool is_nullable() const;
  [[nodiscard]] FieldRef ref(RunConfig& config) const { return in_run(config); }
  // "at least 1", "above 0 and at most 1", "one of a, b", or empty.
  [[nodiscard]] std::string range_text() const;
  // The value as TOML text; "null" for an unset nullable.
  [[nodiscard]] std::string default_text() const;
};

struct TableInfo {
  std::string name;  // "actor.optim"; "reward.*" for [[reward]]
  std::string doc;
};

// All keys in the order of the documentation.
const std::vector<Field>& all_fields();
// All tables, in the same order.
const std::vector<TableInfo>& all_tables();
// By canonical key; null if there is none.
const Field* find_field(std::string_view key);
const TableInfo* find_table(std::string_view name);

// The value behind a reference as JSON (null for an unset nullable; durations as "10s").
Json field_value(const FieldRef& ref);

// "acme.losses/my_loss@^1.0" -> "my_loss": the name under which a plugin appears in tables and metrics.
std::string plugin_bare_name(std::string_view name);

// "10s", "500ms", "2m", "1h" and sums of them ("1m30s") to milliseconds, and back in the shortest form.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);
std::string format_duration(std::chrono::milliseconds duration);

}  // namespace mortise
