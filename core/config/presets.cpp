#include "config/presets.h"

#include <algorithm>

namespace mortise {

std::span<const Preset> all_presets() {
  static const std::vector<Preset> presets = {
      {"grpo",
       "GRPO as published (arXiv 2402.03300): advantages divided by the group's standard deviation, a mean over tokens "
       "inside each row and then over rows, and a KL term to the initial model with coefficient 0.04.",
       {"algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=true", "actor.policy_loss.loss_mode=vanilla",
        "actor.clip_ratio_low=0.2", "actor.clip_ratio_high=0.2", "actor.loss_agg_mode=seq-mean-token-mean",
        "actor.use_kl_loss=true", "actor.kl_loss_coef=0.04", "actor.kl_loss_type=low_var_kl"}},
      {"dr_grpo",
       "Dr. GRPO (arXiv 2503.20783): no division by the standard deviation and none by the row's length (the sum over "
       "tokens is divided by data.max_response_length), no KL term.",
       {"algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=false",
        "actor.policy_loss.loss_mode=vanilla", "actor.clip_ratio_low=0.2", "actor.clip_ratio_high=0.2",
        "actor.loss_agg_mode=seq-mean-token-sum-norm", "actor.loss_scale_by_rows=true", "actor.use_kl_loss=false"}},
      {"dapo",
       "The loss of DAPO (arXiv 2503.14476): upper clip range 0.28, mean over all tokens of the update, no KL term. "
       "Its "
       "dynamic sampling (groups of equal rewards drawn again) and its overlong reward are not part of this preset.",
       {"algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=true", "actor.policy_loss.loss_mode=vanilla",
        "actor.clip_ratio_low=0.2", "actor.clip_ratio_high=0.28", "actor.loss_agg_mode=token-mean",
        "actor.use_kl_loss=false"}},
      {"gspo",
       "GSPO (arXiv 2507.18071): one importance ratio per row, clipped to 1 - 3e-4 .. 1 + 4e-4, mean over rows, no KL "
       "term.",
       {"algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=true", "actor.policy_loss.loss_mode=gspo",
        "actor.clip_ratio_low=3e-4", "actor.clip_ratio_high=4e-4", "actor.loss_agg_mode=seq-mean-token-mean",
        "actor.use_kl_loss=false"}},
      {"rloo",
       "RLOO (arXiv 2402.14740): the baseline of a row is the mean of the other rows of its group; the KL to the "
       "initial "
       "model is taken from the reward with coefficient 0.05; a row counts by the sum over its tokens.",
       {"algorithm.adv_estimator=rloo", "algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=kl",
        "algorithm.kl_ctrl.type=fixed", "algorithm.kl_ctrl.kl_coef=0.05", "actor.policy_loss.loss_mode=vanilla",
        "actor.clip_ratio_low=0.2", "actor.clip_ratio_high=0.2", "actor.loss_agg_mode=seq-mean-token-sum",
        "actor.use_kl_loss=false"}},
  };
  return presets;
}

const Preset* find_preset(std::string_view name) {
  const std::span<const Preset> presets = all_presets();
  const auto found = std::ranges::find(presets, name, &Preset::name);
  return found == presets.end() ? nullptr : &*found;
}

}  // namespace mortise
