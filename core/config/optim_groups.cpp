// Reads the tables of optim.groups with the records of the keys that they share.
#include "config/optim_groups.h"

#include <fmt/core.h>

#include <array>
#include <string_view>
#include <utility>

#include "config/assign.h"
#include "config/config_node.h"
#include "config/toml_text.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

// A key of a group, and the key of the run whose type and range it has.
struct SharedKey {
  std::string_view name, like;
};
constexpr std::array<SharedKey, 6> kGroupKeys = {{{"match", "model.path"},
                                                  {"lr", "actor.optim.lr"},
                                                  {"lr_scale", "actor.optim.lr"},
                                                  {"weight_decay", "actor.optim.weight_decay"},
                                                  {"optimizer", "actor.optim.optimizer"},
                                                  {"freeze", "actor.optim.decay_all_parameters"}}};

// What a table says.
struct GroupValues {
  std::optional<std::string> match, optimizer;
  std::optional<double> lr, lr_scale, weight_decay;
  std::optional<bool> freeze;

  FieldRef of(std::string_view name) {
    if (name == "match") return &match.emplace();
    if (name == "optimizer") return &optimizer.emplace();
    if (name == "lr") return &lr.emplace();
    if (name == "lr_scale") return &lr_scale.emplace();
    if (name == "weight_decay") return &weight_decay.emplace();
    return &freeze.emplace();
  }
  // It is frozen, and has settings of an optimizer.
  [[nodiscard]] bool contradicts_itself() const {
    return freeze.value_or(false) && (lr || lr_scale || weight_decay || optimizer);
  }
};

class GroupReader {
 public:
  GroupReader(const LoadedConfig& loaded, std::string table)
      : loaded_(loaded), table_(std::move(table)), optim_(optim_of(loaded.config, table_)) {}

  Result<std::vector<OptimGroup>> read() {
    std::vector<OptimGroup> groups;
    for (const auto& [name, table] : optim_.groups.items()) read_group(name, table, groups);
    if (!problems_.empty()) return join_problems(std::move(problems_));
    return groups;
  }

 private:
  void problem(const std::string& key, std::string what, std::string next) {
    problems_.push_back({ErrorKind::kConfig, std::move(what), loaded_.where(key), std::move(next)});
  }

  void read_group(const std::string& name, const Json& table, std::vector<OptimGroup>& groups) {
    const std::string key = fmt::format("{}.groups.{}", table_, toml_key(name));
    if (!table.is_object())
      return problem(key, fmt::format("'{}' is not a table", key), fmt::format("write [{}] match = \"lm_head\"", key));
    GroupValues values;
    const size_t before = problems_.size();
    for (const auto& [leaf, value] : table.items()) read_key(key, leaf, value, values);
    if (problems_.size() > before) return;
    if (!values.match || values.match->empty())
      return problem(key, fmt::format("'{}' has no match", key), fmt::format("set {}.match = \"lm_head\"", key));
    auto pattern = parse::Pattern::compile(*values.match);
    if (!pattern.ok()) {
      return problem(key + ".match",
                     fmt::format("'{}.match' is not a regular expression: {}", key, pattern.fault().what),
                     "correct it; a name without special characters matches itself");
    }
    OptimGroup group{key, *values.match, std::move(*pattern)};
    group.freeze = values.freeze.value_or(false);
    group.weight_decay = values.weight_decay;
    if (values.contradicts_itself()) {
      problem(key, fmt::format("'{}' is frozen, so its other settings would have no effect", key),
              "remove freeze or the others");
    }
    read_rate(values, group);
    read_optimizer(values, group);
    groups.push_back(std::move(group));
  }

  void read_key(const std::string& group, const std::string& leaf, const Json& value, GroupValues& values) {
    const std::string key = fmt::format("{}.{}", group, toml_key(leaf));
    for (const SharedKey& shared : kGroupKeys) {
      if (shared.name != leaf) continue;
      Field field = *find_field(shared.like);
      field.key = key;  // as messages name it
      ConfigNode node;
      node.value = value;
      node.where = loaded_.where(key);
      if (auto assigned = assign_value(field, values.of(leaf), node); !assigned.ok())
        problems_.push_back(std::move(assigned).error());
      return;
    }
    std::vector<std::string> names;
    for (const SharedKey& shared : kGroupKeys) names.emplace_back(shared.name);
    const std::string near = did_you_mean(leaf, names);
    problem(key, fmt::format("unknown key '{}'", key), near.empty() ? "a group has " + join(names, ", ") : near);
  }

  // A rate is a factor of the schedule.
  void read_rate(const GroupValues& values, OptimGroup& group) {
    const std::string key = group.key + ".lr";
    if (values.lr && values.lr_scale)
      return problem(key, fmt::format("'{}' has both lr and lr_scale", group.key), "remove one of the two");
    group.lr_scale = values.lr_scale.value_or(1.0);
    if (!values.lr) return;
    if (optim_.optimizer == OptimizerName::kAdafactor && optim_.relative_step) {
      return problem(key, fmt::format("'{}' has no effect, because '{}.relative_step' is true", key, table_),
                     "set lr_scale");
    }
    if (optim_.lr == 0.0) {
      return problem(key, fmt::format("'{}' cannot follow the schedule of '{}.lr', which is 0", key, table_),
                     fmt::format("set {}.lr above 0, and lr_scale = 0 in groups that must not learn", table_));
    }
    group.lr_scale = *values.lr / optim_.lr;
  }

  void read_optimizer(const GroupValues& values, OptimGroup& group) {
    if (!values.optimizer) return;
    const std::string key = group.key + ".optimizer";
    const std::string_view muon = choice_name(OptimizerName::kMuon), adamw = choice_name(OptimizerName::kAdamW);
    if (*values.optimizer != muon && *values.optimizer != adamw) {
      return problem(key,
                     fmt::format("'{}' is {}, but a group can choose only between {} and {}", key,
                                 quote(*values.optimizer), muon, adamw),
                     "remove it");
    }
    if (optim_.optimizer != OptimizerName::kMuon) {
      return problem(key,
                     fmt::format("'{}' needs '{}.optimizer' = \"{}\", which has both, but it is {}", key, table_, muon,
                                 choice_name(optim_.optimizer)),
                     "remove it");
    }
    group.uses_muon = *values.optimizer == muon;
  }

  const LoadedConfig& loaded_;
  std::string table_;
  const OptimConfig& optim_;
  std::vector<Error> problems_;
};

}  // namespace

Result<std::vector<OptimGroup>> optim_groups(const LoadedConfig& loaded, const std::string& table) {
  return GroupReader(loaded, table).read();
}

}  // namespace mortise
