// [[reward]]: one table for each reward function.
#pragma once

#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/isolation.h"
#include "foundation/formats/json.h"

namespace mortise {

// What the workers of a reward may use.
enum class WorkerRight { kNetwork, kFiles, kPrograms };
constexpr auto choice_names(WorkerRight) { return std::array<std::string_view, 3>{"network", "files", "programs"}; }

// What a reward scores.
enum class RewardUse { kAll, kTrain, kValidation };
constexpr auto choice_names(RewardUse) { return std::array<std::string_view, 3>{"all", "train", "validation"}; }

struct RewardConfig {
  std::string use;                            // reward plugin
  std::string name;                           // label in metrics and dumps; "" in the file: see decode.cpp
  double weight = 1.0;                        // factor of its column in the sum (TRL: reward_weights)
  RewardUse used_in = RewardUse::kAll;        // the completions that it scores
  std::chrono::milliseconds timeout{10'000};  // for the rows of a step: "500ms", "10s", "2m", "1h"
  std::chrono::milliseconds row_timeout{0};   // for one row (or group); 0 = a fifth of timeout
  std::vector<WorkerRight> allow;             // what its workers may use
  Json params = Json::object();               // every other key of the [[reward]] table: parameters of the plugin
  bool operator==(const RewardConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

inline constexpr const char* kNoWorkers = "plugins.isolation is none, so there are no workers";

// Rewards have no workers; losses and estimators may have some.
inline constexpr auto has_no_reward_workers = [](const auto& k) {
  return k.config.plugins.isolation == Isolation::kNone;
};

template <class Keys>
void describe_reward(Keys& keys) {
  keys.compared("use", &RewardConfig::use, "Reward, by plugin name: exact_match, regex, length, column, ... Required.")
      .plugin("reward")
      .verl("custom_reward_function.name")
      .trl("reward_funcs");
  keys.free("name", &RewardConfig::name,
            "Label in metrics and dumps. Two rewards must not share a name. Not set: the plugin's bare name. If "
            "several rewards use one plugin that calls a function (python), each is named after its `function`.");
  keys.compared("weight", &RewardConfig::weight, "Factor of this reward in the sum. May be negative.")
      .trl("reward_weights");
  keys.compared("used_in", &RewardConfig::used_in,
                "Which completions this reward scores. all: those of training and of validation. train or validation: "
                "only those. A set of data.val_sets may choose among the rewards of validation.");
  keys.free("timeout", &RewardConfig::timeout,
            "Time limit for the rows of a step: \"500ms\", \"10s\", \"2m\", \"1h\". Rows without a score by then get "
            "none from this reward and are counted.")
      .at_least(1);
  keys.free("row_timeout", &RewardConfig::row_timeout,
            "Time limit for one row, or for one group if the reward scores whole groups. A worker that takes longer is "
            "killed and replaced, and the row has no score. Only timeout applies without workers (plugins.isolation), "
            "and to a reward that scores a whole step in one call (python, http). 0s: a fifth of timeout.")
      .at_least(0)
      .no_effect(kInTrain | kInEval, has_no_reward_workers, kNoWorkers);
  keys.free("allow", &RewardConfig::allow,
            "What this reward's workers may use: network, files (to write them), programs (to start them). Reading "
            "files is always allowed, and so is what the plugin declares to need (python: programs, files; http: "
            "network). No effect without workers.")
      .no_effect(kInTrain | kInEval, has_no_reward_workers, kNoWorkers);
  keys.compared("params", &RewardConfig::params,
                "Every other key of the table is a parameter of the reward and is checked against its parameters.")
      .inline_table();
}

template <class Catalog>
void describe_reward_section(Catalog& catalog) {
  auto keys =
      catalog.reward_table("One [[reward]] table per reward function. The score of a row is their weighted sum.");
  describe_reward(keys);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
