// The table of presets: each paper's keys and values.
#include "config/presets.h"

#include <fmt/core.h>

#include <algorithm>

namespace mortise {
namespace {

// Nearly all presets sample from the policy as it is.
Preset preset(std::string name, std::string doc, std::vector<std::string> settings) {
  for (const std::string plain : {"rollout.temperature=1.0", "rollout.top_k=-1", "rollout.top_p=1.0"}) {
    const auto is_set = [&plain](const std::string& setting) {
      return setting.starts_with(plain.substr(0, plain.find('=') + 1));
    };
    if (std::ranges::none_of(settings, is_set)) settings.push_back(plain);
  }
  return {std::move(name), std::move(doc), std::move(settings)};
}

std::vector<Preset> with_the_clip_of_ppo() {
  return {
      preset("grpo",
             "GRPO as published (arXiv 2402.03300). Advantages are divided by the group's standard deviation. The "
             "clip range is 0.2, without dual clip. The loss is a mean over tokens inside each row and then over "
             "rows, with a KL term to the initial model with coefficient 0.04. 64 completions per prompt.",
             {"algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=true",
              "algorithm.use_kl_in_reward=false", "actor.policy_loss.loss_mode=vanilla", "actor.clip_ratio_low=0.2",
              "actor.clip_ratio_high=0.2", "actor.clip_ratio_c=0", "actor.loss_agg_mode=seq-mean-token-mean",
              "actor.use_kl_loss=true", "actor.kl_loss_coef=0.04", "actor.kl_loss_type=low_var_kl", "rollout.n=64"}),
      preset("dr_grpo",
             "Dr. GRPO (arXiv 2503.20783). Advantages are not divided by the standard deviation, and rows are not "
             "divided by their length: the sum over tokens is divided by data.max_response_length. No KL term. 8 "
             "completions per prompt.",
             {"algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=false",
              "algorithm.use_kl_in_reward=false", "actor.policy_loss.loss_mode=vanilla", "actor.clip_ratio_low=0.2",
              "actor.clip_ratio_high=0.2", "actor.clip_ratio_c=0", "actor.loss_agg_mode=seq-mean-token-sum-norm",
              "actor.loss_scale_by_rows=true", "actor.use_kl_loss=false", "rollout.n=8"}),
      preset("dapo",
             "DAPO (arXiv 2503.14476). The upper clip range is 0.28, and the loss is a mean over all tokens of the "
             "update, without a KL term. Groups of equal rewards are drawn again. 16 completions per prompt. Its "
             "overlong reward (reward `length`) is not part of this preset.",
             {"algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=true",
              "algorithm.use_kl_in_reward=false", "algorithm.filter_groups.enable=true",
              "actor.policy_loss.loss_mode=vanilla", "actor.clip_ratio_low=0.2", "actor.clip_ratio_high=0.28",
              "actor.clip_ratio_c=0", "actor.loss_agg_mode=token-mean", "actor.use_kl_loss=false", "rollout.n=16"}),
      preset("bnpo",
             "BNPO (arXiv 2506.02864), for rewards of 0 and 1. Advantages are divided by a Beta density that is "
             "fitted to the groups' mean rewards of the step. The rest is from the authors' run file: clip range 0.2 "
             "and 0.28, dual clip of 10, a sum over each row's tokens, no KL term, 16 completions per prompt. (TRL's "
             "loss_type bnpo is only the aggregation.)",
             {"algorithm.adv_estimator=bnpo", "algorithm.adv_params.method=density", "algorithm.use_kl_in_reward=false",
              "actor.policy_loss.loss_mode=vanilla", "actor.clip_ratio_low=0.2", "actor.clip_ratio_high=0.28",
              "actor.clip_ratio_c=10", "actor.loss_agg_mode=seq-mean-token-sum", "actor.use_kl_loss=false",
              "rollout.n=16"}),
      preset("lite_ppo",
             "Lite PPO (arXiv 2508.08221). The baseline is the group's mean, the scale is the standard deviation of "
             "the whole step, and PPO's clip is 0.2. The loss is a mean over all tokens of the update, without a KL "
             "term and without a critic. 8 completions per prompt, sampled with temperature 0.99, top_k 100 and top_p "
             "0.99, as in TRL's paper index.",
             {"algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=true",
              "algorithm.adv_params.std=batch", "algorithm.use_kl_in_reward=false",
              "actor.policy_loss.loss_mode=vanilla", "actor.clip_ratio_low=0.2", "actor.clip_ratio_high=0.2",
              "actor.clip_ratio_c=0", "actor.loss_agg_mode=token-mean", "actor.use_kl_loss=false", "rollout.n=8",
              "rollout.temperature=0.99", "rollout.top_k=100", "rollout.top_p=0.99"}),
  };
}

std::vector<Preset> with_another_ratio() {
  return {
      preset(
          "gspo",
          "GSPO (arXiv 2507.18071). One importance ratio per row, clipped to 1 - 3e-4 .. 1 + 4e-4. The loss is a "
          "mean over rows, without a KL term. 16 completions per prompt, as in verl's GSPO example, which cuts a "
          "step into 4 updates (actor.ppo_mini_batch_size).",
          {"algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=true", "algorithm.use_kl_in_reward=false",
           "actor.policy_loss.loss_mode=gspo", "actor.clip_ratio_low=3e-4", "actor.clip_ratio_high=4e-4",
           "actor.loss_agg_mode=seq-mean-token-mean", "actor.use_kl_loss=false", "rollout.n=16"}),
      preset("cispo",
             "CISPO (MiniMax-M1, arXiv 2506.13585). Every token keeps its gradient, weighted by a ratio that is "
             "capped only from above. The loss is a mean over all tokens of the update, without a KL term. The cap of "
             "5 and the 16 completions per prompt are from ScaleRL (arXiv 2510.13786).",
             {"algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=true",
              "algorithm.use_kl_in_reward=false", "actor.policy_loss.loss_mode=cispo", "actor.policy_loss.cap=5.0",
              "actor.loss_agg_mode=token-mean", "actor.use_kl_loss=false", "rollout.n=16"}),
      preset(
          "sapo",
          "SAPO (arXiv 2511.20347). A sigmoid gate of the ratio replaces the clip, with temperature 1.0 for "
          "positive advantages and 1.05 for the others. The loss is a mean over tokens inside each row and then "
          "over rows, without a KL term. The 16 completions per prompt are from verl's SAPO examples.",
          {"algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=true", "algorithm.use_kl_in_reward=false",
           "actor.policy_loss.loss_mode=sapo", "actor.policy_loss.tau_pos=1.0", "actor.policy_loss.tau_neg=1.05",
           "actor.loss_agg_mode=seq-mean-token-mean", "actor.use_kl_loss=false", "rollout.n=16"}),
  };
}

std::vector<Preset> with_other_baselines() {
  return {
      preset("ppo",
             "PPO (arXiv 1707.06347) as for language models (arXiv 2203.02155). Advantages come from a critic with "
             "gamma 1 and lambda 0.95. The clip range is 0.2, and the loss is a mean over all tokens of the update. "
             "The KL to the initial model is subtracted from the reward with coefficient 0.02. Needs a critic.",
             {"algorithm.adv_estimator=gae", "algorithm.gamma=1.0", "algorithm.lam=0.95",
              "algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=kl", "algorithm.kl_ctrl.type=fixed",
              "algorithm.kl_ctrl.kl_coef=0.02", "actor.policy_loss.loss_mode=vanilla", "actor.clip_ratio_low=0.2",
              "actor.clip_ratio_high=0.2", "actor.clip_ratio_c=0", "actor.loss_agg_mode=token-mean",
              "actor.use_kl_loss=false", "critic.cliprange_value=0.2", "rollout.n=1"}),
      preset("reinforce_plus_plus",
             "REINFORCE++ (arXiv 2501.03262). Returns whitened over the step replace a critic or a group. PPO's clip "
             "is 0.2, and the loss is a mean over all tokens of the update. The KL to the initial model is subtracted "
             "from the reward of each token with coefficient 0.01. One completion per prompt.",
             {"algorithm.adv_estimator=reinforce_plus_plus", "algorithm.gamma=1.0", "algorithm.use_kl_in_reward=true",
              "algorithm.kl_penalty=kl", "algorithm.kl_ctrl.type=fixed", "algorithm.kl_ctrl.kl_coef=0.01",
              "actor.policy_loss.loss_mode=vanilla", "actor.clip_ratio_low=0.2", "actor.clip_ratio_high=0.2",
              "actor.clip_ratio_c=0", "actor.loss_agg_mode=token-mean", "actor.use_kl_loss=false", "rollout.n=1"}),
      preset("rloo",
             "RLOO (arXiv 2402.14740). REINFORCE with the mean of the other rows of the group as a row's baseline. "
             "The KL to the initial model is subtracted from the reward with coefficient 0.05. The loss sums over a "
             "row's tokens. 4 completions per prompt.",
             {"algorithm.adv_estimator=rloo", "algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=kl",
              "algorithm.kl_ctrl.type=fixed", "algorithm.kl_ctrl.kl_coef=0.05", "actor.policy_loss.loss_mode=reinforce",
              "actor.loss_agg_mode=seq-mean-token-sum", "actor.use_kl_loss=false", "rollout.n=4"}),
  };
}

}  // namespace

std::span<const Preset> all_presets() {
  static const std::vector<Preset> presets = [] {
    std::vector<Preset> all = with_the_clip_of_ppo();
    for (auto& more : {with_another_ratio(), with_other_baselines()}) all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return presets;
}

const Preset* find_preset(std::string_view name) {
  const std::span<const Preset> presets = all_presets();
  const auto found = std::ranges::find(presets, name, &Preset::name);
  return found == presets.end() ? nullptr : &*found;
}

namespace {

// `rollout_is`, `rollout_rs` and their bounds; "" = none.
Preset correction(std::string name, std::string doc, std::string_view weights, std::string_view weight_bounds,
                  std::string_view rejection, std::string_view rejection_bounds, std::string_view loss_type = "") {
  const std::string table = "algorithm.rollout_correction.";
  const auto key = [&table](std::string_view leaf, std::string_view value) {
    return fmt::format("{}{}={}", table, leaf, (value.empty() ? "null" : std::string(value)));
  };
  std::vector<std::string> settings = {key("rollout_is", weights), key("rollout_rs", rejection)};
  if (!weights.empty()) settings.push_back(key("rollout_is_threshold", weight_bounds));
  if (!rejection.empty()) settings.push_back(key("rollout_rs_threshold", rejection_bounds));
  settings.push_back(key("bypass_mode", loss_type.empty() ? "false" : "true"));
  if (!loss_type.empty()) settings.push_back(key("loss_type", loss_type));
  return {std::move(name), std::move(doc), std::move(settings)};
}

}  // namespace

std::span<const Preset> rollout_correction_presets() {
  constexpr std::string_view kGeo = "0.999_1.001", kIcePop = "0.5_5.0";
  static const std::vector<Preset> presets = {
      correction("disabled", "nothing", "", "", "", ""),
      correction("decoupled_token_is", "token weights", "token", "2.0", "", ""),
      correction("decoupled_seq_is", "row weights", "sequence", "2.0", "", ""),
      correction("decoupled_token_icepop", "token weights, masked outside", "token", kIcePop, "", ""),
      correction("decoupled_seq_is_rs", "row weights and rejection", "sequence", "2.0", "seq_sum_k1", "0.5_2.0"),
      correction("decoupled_geo_rs", "rejection by the row's mean", "", "", "seq_mean_k1", kGeo),
      correction("decoupled_geo_rs_seq_tis", "with row weights", "sequence", "2.0", "seq_mean_k1", kGeo),
      correction("decoupled_geo_rs_token_tis", "with token weights", "token", "2.0", "seq_mean_k1", kGeo),
      correction("decoupled_k3_rs", "rejection by the row's mean k3", "", "", "seq_mean_k3", "0.01"),
      correction("decoupled_k3_rs_seq_tis", "with row weights", "sequence", "2.0", "seq_mean_k3", "0.01"),
      correction("decoupled_k3_rs_token_tis", "with token weights", "token", "2.0", "seq_mean_k3", "0.01"),
      correction("bypass_ppo_clip", "PPO on the sampler's ratio", "", "", "", "", "ppo_clip"),
      correction("bypass_ppo_clip_geo_rs", "with rejection", "", "", "seq_mean_k1", kGeo, "ppo_clip"),
      correction("bypass_ppo_clip_k3_rs", "with rejection by k3", "", "", "seq_mean_k3", "0.01", "ppo_clip"),
      correction("bypass_pg_is", "REINFORCE with row weights", "sequence", "2.0", "", "", "reinforce"),
      correction("bypass_pg_token_icepop", "with token weights, masked outside", "token", kIcePop, "", "", "reinforce"),
      correction("bypass_pg_geo_rs", "REINFORCE with rejection", "", "", "seq_mean_k1", kGeo, "reinforce"),
      correction("bypass_pg_geo_rs_seq_tis", "and row weights", "sequence", "2.0", "seq_mean_k1", kGeo, "reinforce"),
      correction("bypass_pg_geo_rs_token_tis", "and token weights", "token", "2.0", "seq_mean_k1", kGeo, "reinforce"),
  };
  return presets;
}

}  // namespace mortise
