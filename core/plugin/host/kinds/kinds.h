// The table of the plugin kinds. Everything that goes through the kinds reads it: names, what a config writes, what a
// plugin may ask for, and the slots that its vtable must have. CONTRIBUTING.md lists what a new kind adds.
//
// Thread rule: constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mortise/kinds/environment.h"
#include "mortise/mortise.h"
#include "plugin/host/kinds/input_columns.h"

namespace mortise {

std::string kl_base_name(std::string_view name);  // kl_estimator.h

// Where a config names a plugin of a kind and gives it parameters. A `*` is the place in a list of tables.
struct KindParams {
  std::string_view name_key;           // "actor.policy_loss.loss_mode"
  std::string_view table;              // "actor.policy_loss."
  std::string_view engine_table = "";  // "actor.": the engine has keys there that may have the name of a parameter
  bool is_by_plugin = false;           // the plugin's name follows the table's, as in rollout.replay.path
  std::string_view used_if = "";       // the key that must be true for the plugin to be used; "": it always is
  std::string_view not_a_plugin = "";  // a value of name_key that the engine computes itself
  std::string (*plugin_name)(std::string_view value) = nullptr;  // from a value of name_key; null: the value itself
};

struct KindSlot {
  const char* name;
  size_t offset;  // in the vtable
};

struct KindInfo {
  const char* id;                            // "mortise.policy_loss/1"
  std::string_view name;                     // "policy_loss"
  std::string_view title;                    // "Policy losses"
  std::string_view chosen_by;                // the keys of a config that name a plugin of the kind, in Markdown
  std::string_view example;                  // the lines of a config before ` = "NAME"`
  std::span<const KindParams> params;        // where a config gives parameters
  std::span<const std::string_view> inputs;  // what `requires_inputs` may name
  bool has_coupling;                         // `coupling` of the descriptor means something
  size_t vtable_size;                        // size in this ABI
  std::span<const KindSlot> slots;           // mandatory ones, after create and destroy
};

namespace kind_tables {

inline constexpr KindParams kPolicyLossParams[] = {
    {.name_key = "actor.policy_loss.loss_mode", .table = "actor.policy_loss.", .engine_table = "actor."}};
inline constexpr auto kPolicyLossInputs = input_names<mortise_policy_loss_in>();
inline constexpr KindSlot kPolicyLossSlots[] = {{"compute", offsetof(mortise_policy_loss_vtable, compute)}};

inline constexpr KindParams kKlEstimatorParams[] = {{.name_key = "actor.kl_loss_type",
                                                     .table = "actor.kl_params.",
                                                     .used_if = "actor.use_kl_loss",
                                                     .not_a_plugin = "full",
                                                     .plugin_name = kl_base_name},
                                                    {.name_key = "algorithm.kl_penalty",
                                                     .table = "algorithm.kl_params.",
                                                     .used_if = "algorithm.use_kl_in_reward",
                                                     .plugin_name = kl_base_name}};
inline constexpr auto kKlEstimatorInputs = input_names<mortise_kl_estimator_in>();
inline constexpr KindSlot kKlEstimatorSlots[] = {{"compute", offsetof(mortise_kl_estimator_vtable, compute)}};

inline constexpr KindParams kAdvantageParams[] = {
    {.name_key = "algorithm.adv_estimator", .table = "algorithm.adv_params.", .engine_table = "algorithm."}};
inline constexpr auto kAdvantageInputs = input_names<mortise_advantage_estimator_in>("rewards", "reward_weights");
inline constexpr KindSlot kAdvantageSlots[] = {{"compute", offsetof(mortise_advantage_estimator_vtable, compute)}};

inline constexpr KindParams kRewardParams[] = {{.name_key = "reward.*.use", .table = "reward.*."}};
inline constexpr KindSlot kRewardSlots[] = {{"score", offsetof(mortise_reward_vtable, score)}};

inline constexpr KindParams kRolloutParams[] = {
    {.name_key = "rollout.name", .table = "rollout.", .is_by_plugin = true}};
inline constexpr KindSlot kRolloutSlots[] = {{"set_version", offsetof(mortise_rollout_backend_vtable, set_version)},
                                             {"submit", offsetof(mortise_rollout_backend_vtable, submit)},
                                             {"poll", offsetof(mortise_rollout_backend_vtable, poll)}};

inline constexpr KindParams kEnvironmentParams[] = {{.name_key = "rollout.multi_turn.environment",
                                                     .table = "rollout.multi_turn.params.",
                                                     .used_if = "rollout.multi_turn.enable"}};
inline constexpr KindSlot kEnvironmentSlots[] = {{"step", offsetof(mortise_environment_vtable, step)}};

}  // namespace kind_tables

inline constexpr KindInfo kKinds[] = {
    {.id = MORTISE_KIND_POLICY_LOSS,
     .name = "policy_loss",
     .title = "Policy losses",
     .chosen_by = "`actor.policy_loss.loss_mode`",
     .example = "[actor.policy_loss]\n  loss_mode",
     .params = kind_tables::kPolicyLossParams,
     .inputs = kind_tables::kPolicyLossInputs,
     .has_coupling = true,
     .vtable_size = sizeof(mortise_policy_loss_vtable),
     .slots = kind_tables::kPolicyLossSlots},
    {.id = MORTISE_KIND_KL_ESTIMATOR,
     .name = "kl_estimator",
     .title = "KL estimators",
     .chosen_by = "`actor.kl_loss_type`, `algorithm.kl_penalty`. `actor.kl_loss_type = \"full\"` is not a plugin: the "
                  "engine computes the KL over the whole vocabulary",
     .example = "[actor]\n  use_kl_loss = true\n  kl_loss_type",
     .params = kind_tables::kKlEstimatorParams,
     .inputs = kind_tables::kKlEstimatorInputs,
     .has_coupling = true,
     .vtable_size = sizeof(mortise_kl_estimator_vtable),
     .slots = kind_tables::kKlEstimatorSlots},
    {.id = MORTISE_KIND_ADVANTAGE_ESTIMATOR,
     .name = "advantage_estimator",
     .title = "Advantage estimators",
     .chosen_by = "`algorithm.adv_estimator`",
     .example = "[algorithm]\n  adv_estimator",
     .params = kind_tables::kAdvantageParams,
     .inputs = kind_tables::kAdvantageInputs,
     .has_coupling = false,
     .vtable_size = sizeof(mortise_advantage_estimator_vtable),
     .slots = kind_tables::kAdvantageSlots},
    {.id = MORTISE_KIND_REWARD,
     .name = "reward",
     .title = "Rewards",
     .chosen_by = "`[[reward]] use`",
     .example = "[[reward]]\n  use",
     .params = kind_tables::kRewardParams,
     .inputs = {},
     .has_coupling = false,
     .vtable_size = sizeof(mortise_reward_vtable),
     .slots = kind_tables::kRewardSlots},
    {.id = MORTISE_KIND_ROLLOUT_BACKEND,
     .name = "rollout_backend",
     .title = "Rollout backends",
     .chosen_by = "`rollout.name`",
     .example = "[rollout]\n  name",
     .params = kind_tables::kRolloutParams,
     .inputs = {},
     .has_coupling = false,
     .vtable_size = sizeof(mortise_rollout_backend_vtable),
     .slots = kind_tables::kRolloutSlots},
    {.id = MORTISE_KIND_ENVIRONMENT,
     .name = "environment",
     .title = "Environments",
     .chosen_by = "`rollout.multi_turn.environment`",
     .example = "[rollout.multi_turn]\n  enable = true\n  environment",
     .params = kind_tables::kEnvironmentParams,
     .inputs = {},
     .has_coupling = false,
     .vtable_size = sizeof(mortise_environment_vtable),
     .slots = kind_tables::kEnvironmentSlots},
};
inline constexpr size_t kNumKinds = std::size(kKinds);

// The place in kKinds of the kind with this id ("mortise.policy_loss/1"); kNumKinds for an unknown one.
[[nodiscard]] constexpr size_t kind_place(std::string_view id) {
  size_t place = 0;
  while (place < kNumKinds && id != kKinds[place].id) ++place;
  return place;
}
// By id; null for an unknown kind.
[[nodiscard]] constexpr const KindInfo* find_kind(std::string_view id) {
  const size_t place = kind_place(id);
  return place < kNumKinds ? &kKinds[place] : nullptr;
}
// By name ("policy_loss"); null for an unknown kind.
[[nodiscard]] const KindInfo* find_kind_named(std::string_view name);

// In the order of the table.
[[nodiscard]] std::vector<std::string> kind_names();
// For people: "policy_loss, kl_estimator, advantage_estimator, reward, rollout_backend or environment".
[[nodiscard]] std::string kind_list();

}  // namespace mortise
