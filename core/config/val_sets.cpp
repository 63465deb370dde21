// Reads the tables of data.val_sets with the records of the keys that they share.
#include "config/val_sets.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "config/assign.h"
#include "config/config_node.h"
#include "config/toml_text.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

// A key of a set, and the key of the run whose type, range and meaning it has: files, how many rows, and how to sample.
const std::map<std::string, std::string, std::less<>>& set_keys() {
  static const std::map<std::string, std::string, std::less<>> keys = [] {
    std::map<std::string, std::string, std::less<>> all{{"files", "data.val_files"},
                                                        {"max_samples", "data.val_max_samples"}};
    constexpr std::string_view kSampling = "rollout.val_kwargs.";
    for (const Field& field : all_fields()) {
      if (field.key.starts_with(kSampling)) all.emplace(field.key.substr(kSampling.size()), field.key);
    }
    return all;
  }();
  return keys;
}

std::vector<std::string> key_names() {
  std::vector<std::string> names{"rewards"};
  for (const auto& [name, key] : set_keys()) names.push_back(name);
  return names;
}

// Names become parts of metrics and files.
bool is_set_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' ||
           c == '.';
  }) && name.front() != '.';
}

class SetReader {
 public:
  explicit SetReader(const LoadedConfig& loaded) : loaded_(loaded) {}

  Result<std::vector<ValSet>> read() {
    const DataConfig& data = loaded_.config.data;
    std::vector<ValSet> sets;
    if (!data.val_files.empty()) {
      sets.push_back(
          {"", "data.val_files", data.val_files, data.val_max_samples, loaded_.config.rollout.val_kwargs, {}});
    }
    for (const auto& [name, table] : data.val_sets.items()) sets.push_back(read_set(name, table));
    if (!problems_.empty()) return join_problems(std::move(problems_));
    return sets;
  }

 private:
  void problem(const std::string& key, std::string what, std::string next) {
    problems_.push_back({ErrorKind::kConfig, std::move(what), loaded_.where(key), std::move(next)});
  }

  ValSet read_set(const std::string& name, const Json& table) {
    ValSet set;
    const std::string key = "data.val_sets." + toml_key(name);
    set.name = name;
    set.files_key = key + ".files";
    if (!is_set_name(name)) {
      problem(key, fmt::format("{} cannot be the name of a validation set", quote(name)),
              "use up to 64 letters, digits, '_', '-' and '.'");
    }
    if (!table.is_object()) {
      problem(key, fmt::format("'{}' is not a table", key), fmt::format("write [{}] files = \"val.jsonl\"", key));
      return set;
    }
    RunConfig scratch = loaded_.config;  // the shared keys are read into a copy
    scratch.data.val_files.clear();
    scratch.data.val_max_samples = -1;
    for (const auto& [leaf, value] : table.items()) read_key(key, leaf, value, scratch, set);
    set.files = scratch.data.val_files;
    set.max_samples = scratch.data.val_max_samples;
    set.kwargs = scratch.rollout.val_kwargs;
    if (set.files.empty())
      problem(key, fmt::format("'{}' has no files", key), fmt::format("set {}.files = \"val.jsonl\"", key));
    return set;
  }

  void read_key(const std::string& table, const std::string& leaf, const Json& value, RunConfig& scratch, ValSet& set) {
    const std::string key = fmt::format("{}.{}", table, toml_key(leaf));
    if (leaf == "rewards") return read_rewards(key, value, set);
    const auto shared = set_keys().find(leaf);
    if (shared == set_keys().end()) {
      const std::string near = did_you_mean(leaf, key_names());
      problem(key, fmt::format("unknown key '{}'", key), near.empty() ? "a set has " + join(key_names(), ", ") : near);
      return;
    }
    Field field = *find_field(shared->second);
    const FieldRef ref = field.ref(scratch);
    field.key = key;  // as messages name it
    ConfigNode node;
    node.value = value;
    node.where = loaded_.where(key);
    if (auto assigned = assign_value(field, ref, node); !assigned.ok())
      problems_.push_back(std::move(assigned).error());
  }

  void read_rewards(const std::string& key, const Json& value, ValSet& set) {
    const Json list = value.is_string() ? Json::array({value}) : value;
    if (!list.is_array() || list.empty()) {
      problem(key, fmt::format("'{}' is not a list of names of rewards", key), "leave it out to use all rewards");
      return;
    }
    std::vector<std::string> known;
    for (const RewardConfig& reward : loaded_.config.reward) known.push_back(reward.name);
    for (const Json& item : list) {
      const std::string name = item.is_string() ? item.get<std::string>() : dump_json(item);
      const auto found = std::ranges::find(known, name);
      if (found == known.end()) {
        const std::string near = did_you_mean(name, known);
        problem(key, fmt::format("'{}' names {}, but no [[reward]] table has this name", key, quote(name)),
                near.empty() ? "the rewards are " + join(known, ", ") : near);
        continue;
      }
      const RewardConfig& reward = loaded_.config.reward[static_cast<size_t>(found - known.begin())];
      if (reward.used_in == RewardUse::kTrain) {
        problem(key, fmt::format("'{}' names {}, which is used in training alone", key, quote(name)),
                "set its used_in to \"all\" or \"validation\"");
      }
      set.rewards.push_back(name);
    }
  }

  const LoadedConfig& loaded_;
  std::vector<Error> problems_;
};

}  // namespace

Result<std::vector<ValSet>> val_sets(const LoadedConfig& loaded) { return SetReader(loaded).read(); }

}  // namespace mortise
