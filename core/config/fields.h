// The list of all keys: one record per key, with everything that is known about it.
//
// A record is written next to the member of its struct, in keys/<section>.h; the default is the member's initialiser.
// Everything that needs to know a key reads this list: the loader, overrides, `config explain|schema|show`, the
// comparison of a resume, the warnings for keys without effect, the import from other frameworks, the tests. Built
// once, on first use (about 160 records); lookups are by hash. Thread rule: immutable after that, any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "config/key_use.h"
#include "config/run_config.h"

namespace mortise {

// A value that is one of Field::choices, or a list of them. The values are places in that list.
struct ChoiceRef {
  enum class Shape { kOne, kNullable, kList };
  Shape shape = Shape::kOne;
  const void* member = nullptr;
  std::function<std::vector<size_t>()> read;  // kNullable: empty if unset
  std::function<void(const std::vector<size_t>&)> write;
  std::vector<std::string_view> names;
};

// Where a key's value lives in a struct.
using FieldRef =
    std::variant<bool*, int64_t*, double*, std::string*, std::chrono::milliseconds*, std::optional<int64_t>*,
                 std::optional<double>*, std::optional<std::string>*, std::vector<std::string>*, std::vector<double>*,
                 Json*, std::optional<bool>*, std::vector<int64_t>*, ChoiceRef>;

// What a resume does if a key differs from the checkpoint's.
enum class OnResume {
  kCompared,  // refuse without --allow-change: the key can change what is learnt
  kFree,      // take the new value
  kLength,    // take the new value, unless a learning-rate schedule depends on the length of the run
};

enum class Peer {
  kVerl,
  kTrl,
  kSwift,
  kTransformers
};  // kTransformers: TrainingArguments, base of TRL's and ms-swift's

// What another framework calls a key.
struct PeerName {
  Peer peer = Peer::kVerl;
  std::string name;
  // The framework's default as JSON ("" = none worth writing) if the meaning is the same and the import copies the
  // value; none if the import computes the key from several settings.
  std::optional<std::string> fallback;
};

struct Field;
struct LoadedConfig;

// What the parameter tables and requirements of the plugins in use say, as far as a key's effect depends on them.
struct PluginFacts {
  std::string loss, estimator;                                       // their names
  std::function<bool(std::string_view kind, std::string_view)> has;  // does the plugin of the kind have the parameter?
  bool loss_reads_reference = false;
  bool has_critic = false;                            // the estimator asks for values
  LossAggMode aggregation = LossAggMode::kTokenMean;  // that actor.loss_agg_mode is or, if it is auto, becomes
};

// What a rule about a key's effect may look at.
struct KeyUse {
  const LoadedConfig& loaded;
  const RunConfig& config;
  ConfigUse use;
  std::string key;  // as set: "reward.0.allow"
  const Field* field = nullptr;
  const PluginFacts* plugins = nullptr;  // for rules with asks_plugins, else null
};

// Why a key that was set has no effect; none if it has one.
struct NoEffectRule {
  std::function<std::optional<std::string>(const KeyUse&)> why;
  bool asks_plugins = false;  // looked at once the plugins are known
};

// A key, or (type Json) a table of plugin parameters that holds any keys.
struct Field {
  std::string key;  // "actor.optim.lr"; of a reward "reward.*.weight"
  std::string doc;  // what it does, in full sentences; unit included
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_is_open = false;  // the value must be above min, not equal
  bool max_is_open = false;
  size_t num_items = 0;              // lists: exactly so many; 0 = any number
  std::vector<std::string> choices;  // the texts that are allowed, if the type is ChoiceRef
  std::string plugin_kind;           // the text names a plugin: "policy_loss", "kl_estimator", ...
  std::string given_to;              // plugins of this kind get the value if they have a parameter of the key's name
  bool is_place = false;             // the text names a file or a folder: "~/" is the home folder
  bool takes_number = false;         // a text that may be written as a number
  bool inline_params = false;        // a Json whose keys are written next to the other keys of the parent table
  OnResume on_resume = OnResume::kCompared;
  Uses unread = 0;  // commands that do not read it; a resume of those does not compare it
  // Those commands read it after all if this holds for the run. Null: never.
  std::function<bool(const RunConfig&)> read_if;
  // kInGenerate, kInServe: the command takes it; kInEval: a key of [trainer] that `mortise eval` reads
  Uses read_by = 0;
  std::vector<PeerName> peers;
  std::vector<NoEffectRule> no_effect;
  std::function<FieldRef(RunConfig&)> in_run;        // null for the keys of a reward
  std::function<FieldRef(RewardConfig&)> in_reward;  // null for all others

  // "integer", "number", "text", "list of texts", ...
  [[nodiscard]] std::string type_name() const;
  [[nodiscard]] bool is_nullable() const;
  [[nodiscard]] FieldRef ref(RunConfig& config) const { return in_run(config); }
  // "at least 1", "above 0 and at most 1", "one of a, b", or empty.
  [[nodiscard]] std::string range_text() const;
  // The value as TOML text; "null" for an unset nullable.
  [[nodiscard]] std::string default_text() const;
  // The framework's name for it, with a remark behind a blank if there is one; empty if it has none of its own.
  [[nodiscard]] std::string name_in(Peer peer) const;
};

struct TableInfo {
  std::string name;  // "actor.optim"; "reward.*" for [[reward]]
  std::string doc;
  std::vector<NoEffectRule> no_effect;  // rules for the whole table
};

// All keys in the order of the documentation.
const std::vector<Field>& all_fields();
// All tables, in the same order.
const std::vector<TableInfo>& all_tables();
// By canonical key; null if there is none.
const Field* find_field(std::string_view key);
const TableInfo* find_table(std::string_view name);
// The record that holds a value of config_to_json: also of a reward ("reward.0.weight"), of a parameter inside a table
// ("algorithm.adv_params.epsilon") and of a plugin's parameter ("rollout.replay.path"). Null if there is none.
const Field* find_record(std::string_view key);

// What plugins of a kind get from the config if they have parameters of these names (Field::given_to): ("gamma", 0.9).
std::vector<std::pair<std::string_view, Json>> offered_params(const RunConfig& config, std::string_view kind);

// The value behind a reference as JSON (null for an unset nullable; durations as "10s").
Json field_value(const FieldRef& ref);

// "acme.losses/my_loss@^1.0" -> "my_loss": the name under which a plugin appears in tables and metrics.
std::string plugin_bare_name(std::string_view name);

// "10s", "500ms", "2m", "1h" and sums of them ("1m30s") to milliseconds, and back in the shortest form.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);
std::string format_duration(std::chrono::milliseconds duration);

}  // namespace mortise
