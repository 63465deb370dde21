// The keys of [algorithm]: from rewards to advantages, and which samples count.
#include "config/field_builder.h"

namespace mortise {
namespace {

void add_algorithm(FieldCatalog& catalog) {
  FieldTable<RunConfig, AlgorithmConfig> table(catalog, "algorithm", "From rewards to advantages.",
                                               [](RunConfig& config) -> AlgorithmConfig& { return config.algorithm; });
  table
      .add("adv_estimator", &AlgorithmConfig::adv_estimator,
           "Advantage estimator, by plugin name. gae (verl's default) trains a critic as well as the policy.")
      .plugin("advantage_estimator");
  table
      .add("norm_adv_by_std_in_grpo", &AlgorithmConfig::norm_adv_by_std_in_grpo,
           "Divide group-relative advantages by the standard deviation of the group (false: Dr. GRPO). Given to the "
           "estimator if its table has a parameter of this name.")
      .trl("scale_rewards (group = true, none = false)");
  table
      .add("gamma", &AlgorithmConfig::gamma,
           "Discount per token. Given to the estimator if its table has a parameter of this name.")
      .at_least(0)
      .at_most(1);
  table
      .add("lam", &AlgorithmConfig::lam,
           "Lambda of gae. Given to the estimator if its table has a parameter of this name.")
      .at_least(0)
      .at_most(1);
  table.add("adv_params", &AlgorithmConfig::adv_params,
            "Further parameters of the advantage estimator, checked against its table: adv_params.epsilon = 1e-4.");
  table
      .add(
          "multi_objective_aggregation", &AlgorithmConfig::multi_objective_aggregation,
          "How several rewards become the number that the estimator sees. sum_then_normalize: their weighted sum. "
          "normalize_then_sum: each less its group's mean, over its standard deviation there + 1e-4, then the weighted "
          "sum; as TRL with adv_estimator = \"grpo\", adv_params.std = \"batch\" and adv_params.epsilon = 1e-4. The "
          "estimator gdpo does it by itself.")
      .one_of({"sum_then_normalize", "normalize_then_sum"})
      .trl("multi_objective_aggregation");
  table.add("use_kl_in_reward", &AlgorithmConfig::use_kl_in_reward,
            "Subtract kl_ctrl.kl_coef times the KL of the sampling policy to the reference, token by token, from the "
            "rewards before advantages are computed.");
  table
      .add("kl_penalty", &AlgorithmConfig::kl_penalty,
           "KL estimator of use_kl_in_reward, by plugin name (kl = k1, abs, mse = k2, low_var_kl = k3).")
      .plugin("kl_estimator");
  table.add("kl_params", &AlgorithmConfig::kl_params,
            "Further parameters of that estimator (the clamps max_log_ratio and max_kl), checked against its table.");
  table
      .add("mask_truncated_completions", &AlgorithmConfig::mask_truncated_completions,
           "Learn nothing from completions that were cut at the length limit; their rewards still count in their "
           "group's "
           "statistics (ms-swift: overlong_filter).")
      .trl("mask_truncated_completions");
  FieldTable<RunConfig, KlControlConfig> control(
      catalog, "algorithm.kl_ctrl", "The coefficient of the KL that is taken from the rewards.",
      [](RunConfig& config) -> KlControlConfig& { return config.algorithm.kl_ctrl; });
  control
      .add("type", &KlControlConfig::type,
           "fixed keeps kl_coef; adaptive moves it by the proportional controller of arXiv 1909.08593 so that the "
           "measured KL nears target_kl.")
      .one_of({"fixed", "adaptive"});
  control.add("kl_coef", &KlControlConfig::kl_coef, "The coefficient, or where adaptive its first value.")
      .at_least(0)
      .at_most(1e6);
  control
      .add("horizon", &KlControlConfig::horizon,
           "Rows over which the adaptive controller reacts: larger is slower. Only used where type is adaptive.")
      .above(0);
  control
      .add("target_kl", &KlControlConfig::target_kl,
           "The KL, in nats per token, that the adaptive controller aims at. Only used where type is adaptive.")
      .above(0);
}

void add_filter_groups(FieldCatalog& catalog) {
  using Section = FilterGroupsConfig;
  FieldTable<RunConfig, Section> table(
      catalog, "algorithm.filter_groups",
      "Dynamic sampling (DAPO, arXiv 2503.14476): a step learns from groups whose rewards differ.",
      [](RunConfig& config) -> Section& { return config.algorithm.filter_groups; });
  table
      .add("enable", &Section::enable,
           "Leave out groups whose metric is the same for all rows, and draw data.gen_batch_size more prompts until "
           "there are "
           "data.train_batch_size. Groups beyond that wait for the next step.")
      .trl("dynamic_sample");
  table.add(
      "metric", &Section::metric,
      "The value that must differ within a group: seq_reward (sum of rewards), a reward's name, or a number that a "
      "reward reports (acc).");
  table
      .add("max_num_gen_batches", &Section::max_num_gen_batches,
           "Generation batches that a step may draw before the run stops. 0: until a pass over all the data gave no "
           "group.")
      .at_least(0);
}

void add_rollout_correction(FieldCatalog& catalog) {
  using Section = RolloutCorrectionConfig;
  FieldTable<RunConfig, Section> table(
      catalog, "algorithm.rollout_correction",
      "What is done where completions were sampled by other numbers or older weights than those that learn from them. "
      "Needs the sampler's log-probs.",
      [](RunConfig& config) -> Section& { return config.algorithm.rollout_correction; });
  table.add("preset", &Section::preset,
            "verl's name of a set of the keys of this table: decoupled_token_is, decoupled_seq_is, bypass_ppo_clip and "
            "others; an unknown name gets the list. What overrides what: as with `preset`.");
  table
      .add("rollout_is", &Section::rollout_is,
           "Weights of the loss by exp(log_prob - rollout_log_prob): token, sequence (of the row's sum) or geometric "
           "(of "
           "its mean). null: none.")
      .one_of({"token", "sequence", "geometric"})
      .trl("vllm_importance_sampling_mode");
  table
      .add("rollout_is_threshold", &Section::rollout_is_threshold,
           "Upper bound of the weights, or \"lower_upper\" (\"0.5_5.0\").")
      .or_number()
      .trl("vllm_importance_sampling_cap");
  table
      .add("rollout_is_outside", &Section::rollout_is_outside,
           "What becomes of a weight outside of its bounds: truncate holds it at the bound, mask makes it 0 (IcePop), "
           "auto "
           "masks where a lower bound is given and truncates otherwise, as verl does.")
      .one_of({"auto", "truncate", "mask"});
  table.add("rollout_is_batch_normalize", &Section::rollout_is_batch_normalize,
            "Divide the weights by their mean over the batch, tokens or rows as rollout_is says.");
  table.add(
      "rollout_rs", &Section::rollout_rs,
      "Statistics that a token or row must keep within rollout_rs_threshold, or it is masked out: token_k1, token_k2, "
      "token_k3, seq_sum_k1, _k2, _k3, seq_mean_k1, _k2, _k3, seq_max_k2, _k3, with commas between; all must hold.");
  table
      .add("rollout_rs_threshold", &Section::rollout_rs_threshold,
           "Bounds of rollout_rs: one for all or one for each, with commas between. k1 takes \"lower_upper\" of the "
           "ratio "
           "of the sampler's probability to the policy's (a single u: 1/u to u), the others an upper bound.")
      .or_number();
  table.add("bypass_mode", &Section::bypass_mode,
            "Take the sampler's log-probs for the old ones, and correct in every update by the current policy. Saves "
            "the pass "
            "for old log-probs.");
  table
      .add("loss_type", &Section::loss_type,
           "In bypass mode: ppo_clip leaves actor.policy_loss as it is, unweighted, because its ratio is the "
           "correction; "
           "reinforce takes the loss reinforce, weighted by rollout_is.")
      .one_of({"ppo_clip", "reinforce"});
}

}  // namespace

void add_algorithm_fields(FieldCatalog& catalog) {
  add_algorithm(catalog);
  add_filter_groups(catalog);
  add_rollout_correction(catalog);
}

}  // namespace mortise
