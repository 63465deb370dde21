// [algorithm]: from rewards to advantages, and which samples count.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "config/keys/control.h"
#include "foundation/base/isolation.h"
#include "foundation/formats/json.h"

namespace mortise {

// How several rewards become one: normalize their sum, or each of them, within its group.
enum class RewardAggregation { kSumThenNormalize, kNormalizeThenSum };
constexpr auto choice_names(RewardAggregation) {
  return std::array<std::string_view, 2>{"sum_then_normalize", "normalize_then_sum"};
}

// One importance weight for each token, or for each row by the sum or the mean over its tokens.
enum class WeightLevel { kToken, kSequence, kGeometric };
constexpr auto choice_names(WeightLevel) { return std::array<std::string_view, 3>{"token", "sequence", "geometric"}; }

// What happens to a weight outside its bounds.
enum class OutsideWeights { kAuto, kTruncate, kMask };
constexpr auto choice_names(OutsideWeights) { return std::array<std::string_view, 3>{"auto", "truncate", "mask"}; }

// The loss of bypass mode.
enum class BypassLoss { kPpoClip, kReinforce };
constexpr auto choice_names(BypassLoss) { return std::array<std::string_view, 2>{"ppo_clip", "reinforce"}; }

struct KlControlConfig {
  Control type = Control::kFixed;
  double kl_coef = 0.001;    // coefficient, or its first value if adaptive
  double horizon = 10000.0;  // rows over which the adaptive controller acts
  double target_kl = 0.1;    // nats per token, adaptive only
  bool operator==(const KlControlConfig&) const = default;
};

struct RolloutCorrectionConfig {             // what is done where the sampler was not the policy trained (verl's names)
  std::optional<std::string> preset;         // verl's named set of the keys below
  std::optional<WeightLevel> rollout_is;     // importance weights; null = none
  std::string rollout_is_threshold = "2.0";  // upper bound of a weight, or "lower_upper"
  OutsideWeights rollout_is_outside = OutsideWeights::kAuto;  // auto: masked only where there is a lower bound
  bool rollout_is_batch_normalize = false;                    // divide by the batch's mean weight
  std::optional<std::string> rollout_rs;            // statistics that a token or row must keep, with commas between
  std::optional<std::string> rollout_rs_threshold;  // one bound, or one for each statistic
  bool bypass_mode = false;                         // the sampler's log-probs stand for the old ones
  BypassLoss loss_type = BypassLoss::kPpoClip;      // the loss of bypass mode
  bool operator==(const RolloutCorrectionConfig&) const = default;
};

struct FilterGroupsConfig {           // dynamic sampling of DAPO
  bool enable = false;                // learn only from groups whose metric differs between rows; draw until enough
  std::string metric = "seq_reward";  // or a reward's name, or a number that a reward gives
  int64_t max_num_gen_batches = 10;   // generation batches per step; 0 = no limit
  std::optional<double> min_mean;     // groups whose mean metric is not above it are dropped
  std::optional<double> max_mean;     // or not below this
  bool operator==(const FilterGroupsConfig&) const = default;
};

struct ReplayBufferConfig {  // groups of earlier steps, in the place of groups that teach nothing
  bool enable = false;       // replace groups whose rewards do not differ
  int64_t size = 64;         // groups that are kept
  int64_t max_age = 8;       // steps; older groups are dropped. 0 = any age
  bool operator==(const ReplayBufferConfig&) const = default;
};

// How PF-PPO turns a row's score into its chance to be drawn.
enum class Reweight { kPow, kMaxMin, kMaxRandom };
constexpr auto choice_names(Reweight) { return std::array<std::string_view, 3>{"pow", "max_min", "max_random"}; }

struct PfPpoConfig {
  Reweight reweight_method = Reweight::kPow;
  double weight_pow = 2.0;  // exponent of pow
  bool operator==(const PfPpoConfig&) const = default;
};

struct AlgorithmConfig {
  std::string adv_estimator = "grpo";          // advantage plugin (verl's default is gae, which needs a critic)
  bool norm_adv_by_std_in_grpo = true;         // given to the plugin where its table has a parameter of this name
  double gamma = 1.0;                          // discount, given to the plugin if it has the parameter
  double lam = 1.0;                            // lambda of gae, the same
  Json adv_params = Json::object();            // further parameters of the advantage plugin, e.g. epsilon
  Isolation adv_isolation = Isolation::kNone;  // whether it runs in a worker process
  RewardAggregation multi_objective_aggregation = RewardAggregation::kSumThenNormalize;
  bool use_kl_in_reward = false;              // subtract kl_ctrl.kl_coef * KL(old, ref) from the token rewards
  std::string kl_penalty = "kl";              // KL plugin of the reward penalty
  Json kl_params = Json::object();            // further parameters of that plugin, e.g. max_kl
  Isolation kl_isolation = Isolation::kNone;  // whether it runs in a worker process
  KlControlConfig kl_ctrl;
  bool mask_truncated_completions = false;  // rows cut at the length limit carry no loss
  FilterGroupsConfig filter_groups;
  ReplayBufferConfig replay_buffer;
  int64_t best_of_n = 0;    // rows of a group that are learnt from, by reward; 0 = all
  bool use_pf_ppo = false;  // draw the step's rows again by their scores
  PfPpoConfig pf_ppo;
  RolloutCorrectionConfig rollout_correction;
  bool operator==(const AlgorithmConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

inline constexpr auto estimator_params = [](const auto& k) -> const Json& { return k.config.algorithm.adv_params; };

inline constexpr auto has_no_reward_kl = [](const auto& k) { return !k.config.algorithm.use_kl_in_reward; };
inline constexpr const char* kNoRewardKl = "algorithm.use_kl_in_reward is false";
inline constexpr auto keeps_all_groups = [](const auto& k) { return !k.config.algorithm.filter_groups.enable; };
inline constexpr const char* kKeepsAllGroups = "algorithm.filter_groups.enable is false";
inline constexpr auto has_no_is_weights = [](const auto& k) {
  return !k.config.algorithm.rollout_correction.rollout_is;
};
inline constexpr const char* kNoIsWeights = "algorithm.rollout_correction.rollout_is is null";

template <class Keys>
void describe_estimator(Keys& keys) {
  keys.compared("adv_estimator", &AlgorithmConfig::adv_estimator,
                "Advantage estimator, by plugin name. gae (verl's default) also trains a critic.")
      .plugin("advantage_estimator");
  keys.compared(
          "norm_adv_by_std_in_grpo", &AlgorithmConfig::norm_adv_by_std_in_grpo,
          "Divide group-relative advantages by the standard deviation of the group. false: Dr. GRPO. The estimator "
          "gets it if it has a parameter of this name.")
      .as_in_verl("true")
      .trl("scale_rewards (group = true, none = false)")
      .given_to("advantage_estimator", estimator_params, "algorithm.adv_params");
  keys.compared("gamma", &AlgorithmConfig::gamma,
                "Discount per token. The estimator gets it if it has a parameter of this name.")
      .at_least(0)
      .at_most(1)
      .given_to("advantage_estimator", estimator_params, "algorithm.adv_params");
  keys.compared("lam", &AlgorithmConfig::lam,
                "Lambda of gae. The estimator gets it if it has a parameter of this name.")
      .at_least(0)
      .at_most(1)
      .given_to("advantage_estimator", estimator_params, "algorithm.adv_params");
  keys.compared(
      "adv_params", &AlgorithmConfig::adv_params,
      "Further parameters of the advantage estimator: adv_params.epsilon = 1e-4. An unknown name is an error.");
  keys.free("adv_isolation", &AlgorithmConfig::adv_isolation,
            "Where the advantage estimator runs. none: in the trainer's own process. process: in a worker process, as "
            "actor.policy_loss.isolation says. auto: process if the machine can, else none.");
  keys.compared(
          "multi_objective_aggregation", &AlgorithmConfig::multi_objective_aggregation,
          "How several rewards become the number that the estimator sees. sum_then_normalize: their weighted sum. "
          "normalize_then_sum: each reward minus its group's mean, divided by its group's standard deviation + 1e-4, "
          "then the weighted sum. To get TRL's numbers, combine that with adv_estimator = \"grpo\", adv_params.std = "
          "\"batch\" and adv_params.epsilon = 1e-4. The estimator gdpo normalizes rewards itself.")
      .trl("multi_objective_aggregation");
}

template <class Keys>
void describe_reward_kl(Keys& keys) {
  keys.compared("use_kl_in_reward", &AlgorithmConfig::use_kl_in_reward,
                "Subtract kl_ctrl.kl_coef times the KL of the sampling policy to the reference from the token rewards, "
                "before advantages are computed.")
      .as_in_verl("false");
  keys.compared("kl_penalty", &AlgorithmConfig::kl_penalty,
                "KL estimator of use_kl_in_reward, by plugin name (kl = k1, abs, mse = k2, low_var_kl = k3).")
      .plugin("kl_estimator")
      .no_effect(kInTrain, has_no_reward_kl, kNoRewardKl);
  keys.compared(
          "kl_params", &AlgorithmConfig::kl_params,
          "Further parameters of that estimator (the clamps max_log_ratio and max_kl). An unknown name is an error.")
      .no_effect(kInTrain, has_no_reward_kl, kNoRewardKl);
  keys.free("kl_isolation", &AlgorithmConfig::kl_isolation,
            "Where that estimator runs. none: in the trainer's own process. process: in a worker process, as "
            "actor.policy_loss.isolation says. auto: process if the machine can, else none.")
      .no_effect(kInTrain, has_no_reward_kl, kNoRewardKl);
  keys.compared("mask_truncated_completions", &AlgorithmConfig::mask_truncated_completions,
                "Learn nothing from completions that were cut at the length limit. Their rewards still count in the "
                "statistics of their group (ms-swift: overlong_filter).")
      .trl("mask_truncated_completions", "false")
      .swift("overlong_filter", "false");
}

inline constexpr auto keeps_kl_coef = [](const auto& k) -> bool {
  return k.config.algorithm.use_kl_in_reward && k.config.algorithm.kl_ctrl.type == Control::kFixed;
};

template <class Keys>
void describe_kl_control(Keys& keys) {
  keys.compared(
      "type", &KlControlConfig::type,
      "fixed keeps kl_coef. adaptive changes it by the proportional controller of arXiv 1909.08593, so that the "
      "measured KL approaches target_kl.");
  keys.compared("kl_coef", &KlControlConfig::kl_coef, "The coefficient, or its first value if type is adaptive.")
      .at_least(0)
      .at_most(1e6);
  keys.compared("horizon", &KlControlConfig::horizon,
                "Rows over which the adaptive controller reacts; larger is slower. Only used if type is adaptive.")
      .above(0)
      .no_effect(kInTrain, keeps_kl_coef, "algorithm.kl_ctrl.type is fixed");
  keys.compared("target_kl", &KlControlConfig::target_kl,
                "KL in nats per token that the adaptive controller aims at. Only used if type is adaptive.")
      .above(0)
      .no_effect(kInTrain, keeps_kl_coef, "algorithm.kl_ctrl.type is fixed");
}

template <class Keys>
void describe_filter_groups(Keys& keys) {
  keys.compared("enable", &FilterGroupsConfig::enable,
                "Leave out groups in which all rows have the same metric. The step then draws data.gen_batch_size more "
                "prompts until it has data.train_batch_size groups. Surplus groups wait for the next step.")
      .as_in_verl("false")
      .trl("dynamic_sample")
      .swift("dynamic_sample", "false")
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.algorithm.filter_groups.enable && k.config.rollout.n < 2; },
          "rollout.n is 1, and a group of one row is always kept");
  keys.compared(
          "metric", &FilterGroupsConfig::metric,
          "The value that must differ within a group: seq_reward (sum of rewards), a reward's name, or a number that "
          "a reward reports (acc).")
      .no_effect(kInTrain, keeps_all_groups, kKeepsAllGroups);
  keys.compared(
          "max_num_gen_batches", &FilterGroupsConfig::max_num_gen_batches,
          "Generation batches that a step may draw before the run stops. 0: the run stops only after a pass over all "
          "the data without a group.")
      .at_least(0)
      .no_effect(kInTrain, keeps_all_groups, kKeepsAllGroups);
}

template <class Keys>
void describe_filter_range(Keys& keys) {
  keys.compared("min_mean", &FilterGroupsConfig::min_mean,
                "Also leave out groups whose mean metric is not above this value. null: no bound.")
      .no_effect(kInTrain, keeps_all_groups, kKeepsAllGroups);
  keys.compared("max_mean", &FilterGroupsConfig::max_mean,
                "Also leave out groups whose mean metric is not below this value. With min_mean: OpenRLHF's "
                "dynamic_filtering_reward_range. null: no bound.")
      .no_effect(kInTrain, keeps_all_groups, kKeepsAllGroups);
}

template <class Keys>
void describe_replay_buffer(Keys& keys) {
  keys.compared("enable", &ReplayBufferConfig::enable,
                "Keep groups whose rewards differ, and learn from them again in the place of later groups whose "
                "rewards do not differ. The step draws them by their spread of rewards. Their old log-probs are those "
                "that they were sampled with.");
  keys.compared("size", &ReplayBufferConfig::size,
                "Groups that the buffer keeps. A full one keeps the groups with the largest spread of rewards.")
      .at_least(1)
      .at_most(1 << 16)
      .trl("replay_buffer_size");
  keys.compared("max_age", &ReplayBufferConfig::max_age,
                "Steps after which a group is dropped: the bound of its staleness. 0: groups of any age, as in TRL.")
      .at_least(0);
}

// Which of a step's rows the updates see.
template <class Keys>
void describe_row_choice(Keys& keys) {
  keys.compared("best_of_n", &AlgorithmConfig::best_of_n,
                "Learn only from this many rows of each group, those with the highest rewards; of equal ones the "
                "earlier. All rows count in the advantages. 0: learn from all rows.")
      .at_least(0)
      .no_effect(
          kInTrain,
          [](const auto& k) {
            const int64_t best = k.config.algorithm.best_of_n;
            return best > 0 && best >= k.config.rollout.n;
          },
          "rollout.n is not larger");
  keys.compared("use_pf_ppo", &AlgorithmConfig::use_pf_ppo,
                "Draw the rows that the updates (also the critic's) see from the step's rows, with replacement, by "
                "their scores (PF-PPO, arXiv 2409.06957). As many rows are drawn as the step has, after the "
                "advantages are computed. Works with every estimator; verl has it for gae (algorithm.use_pf_ppo).");
}

template <class Keys>
void describe_pf_ppo(Keys& keys) {
  keys.compared("reweight_method", &PfPpoConfig::reweight_method,
                "Weight of a row in the draw. pow: |score| ** weight_pow. max_min: 1 for the highest and the lowest "
                "score of the step, else 0. max_random: 0.4 for the highest score, else 0.1. Each weight is raised by "
                "1e-8.");
  keys.compared("weight_pow", &PfPpoConfig::weight_pow, "Exponent of pow.")
      .at_least(0)
      .at_most(1000)
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.algorithm.pf_ppo.reweight_method != Reweight::kPow; },
          "algorithm.pf_ppo.reweight_method is not pow");
}

inline constexpr auto only_measures_weights = [](const auto& k) -> bool {
  const RolloutCorrectionConfig& correction = k.config.algorithm.rollout_correction;
  return correction.bypass_mode && correction.loss_type == BypassLoss::kPpoClip;
};

template <class Keys>
void describe_importance_weights(Keys& keys) {
  keys.free("preset", &RolloutCorrectionConfig::preset,
            "verl's name for a set of keys of this table, such as decoupled_token_is, decoupled_seq_is or "
            "bypass_ppo_clip. The error for an unknown name lists them all. Keys that you set replace those of the "
            "preset.");
  keys.compared(
          "rollout_is", &RolloutCorrectionConfig::rollout_is,
          "Weight the loss by exp(log_prob - rollout_log_prob): token (each token), sequence (the sum over the row) "
          "or geometric (the mean over the row). null: no weights.")
      .as_in_verl("null")
      .trl("vllm_importance_sampling_mode")
      .no_effect(kInTrain | kInObjective, only_measures_weights,
                 "the ratio in bypass mode's loss is already the correction, so weights are only measured");
  keys.compared("rollout_is_threshold", &RolloutCorrectionConfig::rollout_is_threshold,
                "Upper bound of the weights, or \"lower_upper\" (\"0.5_5.0\").")
      .or_number()
      .trl("vllm_importance_sampling_cap")
      .no_effect(kInTrain | kInObjective, has_no_is_weights, kNoIsWeights);
  keys.compared(
          "rollout_is_outside", &RolloutCorrectionConfig::rollout_is_outside,
          "What happens to a weight outside its bounds. truncate sets it to the bound. mask sets it to 0 (IcePop). "
          "auto masks if there is a lower bound and truncates otherwise, as verl does.")
      .no_effect(kInTrain | kInObjective, has_no_is_weights, kNoIsWeights);
  keys.compared("rollout_is_batch_normalize", &RolloutCorrectionConfig::rollout_is_batch_normalize,
                "Divide the weights by their mean over the batch, over tokens or rows as in rollout_is.")
      .no_effect(kInTrain | kInObjective, has_no_is_weights, kNoIsWeights);
}

template <class Keys>
void describe_rejection(Keys& keys) {
  keys.compared(
          "rollout_rs", &RolloutCorrectionConfig::rollout_rs,
          "Statistics that must stay within rollout_rs_threshold, separated by commas. A token or row that fails one "
          "of them is masked out. Names: token_k1, token_k2, token_k3, seq_sum_k1, _k2, _k3, seq_mean_k1, _k2, _k3, "
          "seq_max_k2, _k3.")
      .as_in_verl("null");
  keys.compared(
          "rollout_rs_threshold", &RolloutCorrectionConfig::rollout_rs_threshold,
          "Bounds of rollout_rs, separated by commas: one for all statistics, or one for each. k1 takes "
          "\"lower_upper\" of the ratio of the sampler's probability to the policy's; a single u means 1/u to u. The "
          "others take an upper bound.")
      .or_number()
      .no_effect(
          kInTrain | kInObjective, [](const auto& k) { return !k.config.algorithm.rollout_correction.rollout_rs; },
          "algorithm.rollout_correction.rollout_rs is null");
  keys.compared(
          "bypass_mode", &RolloutCorrectionConfig::bypass_mode,
          "Use the sampler's log-probs as the old ones, and correct by the current policy in every update. Saves the "
          "pass for old log-probs.")
      .as_in_verl("false");
  keys.compared(
          "loss_type", &RolloutCorrectionConfig::loss_type,
          "The loss in bypass mode. ppo_clip leaves actor.policy_loss as it is, without weights, because its ratio "
          "is the correction. reinforce uses the loss reinforce, weighted by rollout_is.")
      .no_effect(
          kInTrain | kInObjective, [](const auto& k) { return !k.config.algorithm.rollout_correction.bypass_mode; },
          "algorithm.rollout_correction.bypass_mode is false");
}

template <class Catalog>
void describe_algorithm_section(Catalog& catalog) {
  auto keys = catalog.table("algorithm", "From rewards to advantages.",
                            [](auto& run) -> AlgorithmConfig& { return run.algorithm; });
  keys.unread_by(kInSft);
  describe_estimator(keys);
  describe_reward_kl(keys);
  auto control = catalog.table("algorithm.kl_ctrl", "The coefficient of the KL that is subtracted from the rewards.",
                               [](auto& run) -> KlControlConfig& { return run.algorithm.kl_ctrl; });
  control.unread_by(kInSft);
  control.no_effect(kInTrain, has_no_reward_kl, kNoRewardKl);
  describe_kl_control(control);
  auto groups =
      catalog.table("algorithm.filter_groups",
                    "Dynamic sampling (DAPO, arXiv 2503.14476): a step learns from groups whose rewards differ.",
                    [](auto& run) -> FilterGroupsConfig& { return run.algorithm.filter_groups; });
  groups.unread_by(kInSft);
  describe_filter_groups(groups);
  describe_filter_range(groups);
  auto buffer = catalog.table("algorithm.replay_buffer",
                              "Groups of earlier steps in the place of groups whose rewards do not differ.",
                              [](auto& run) -> ReplayBufferConfig& { return run.algorithm.replay_buffer; });
  buffer.unread_by(kInSft);
  buffer.no_effect(
      kInTrain, [](const auto& k) { return !k.config.algorithm.replay_buffer.enable; },
      "algorithm.replay_buffer.enable is false");
  describe_replay_buffer(buffer);
  describe_row_choice(keys);
  auto draw = catalog.table("algorithm.pf_ppo", "How algorithm.use_pf_ppo draws rows.",
                            [](auto& run) -> PfPpoConfig& { return run.algorithm.pf_ppo; });
  draw.unread_by(kInSft);
  draw.no_effect(
      kInTrain, [](const auto& k) { return !k.config.algorithm.use_pf_ppo; }, "algorithm.use_pf_ppo is false");
  describe_pf_ppo(draw);
  auto correction = catalog.table(
      "algorithm.rollout_correction",
      "Correction for completions that were sampled with other numbers or older weights than those that learn from "
      "them. Needs the sampler's log-probs.",
      [](auto& run) -> RolloutCorrectionConfig& { return run.algorithm.rollout_correction; });
  correction.unread_by(kInSft);
  describe_importance_weights(correction);
  describe_rejection(correction);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
