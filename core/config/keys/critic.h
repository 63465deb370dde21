// [critic]: the value model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/keys/optim.h"
#include "config/keys/ranks.h"
#include "foundation/batch/token_weight.h"

namespace mortise {

struct CriticModelConfig {
  std::optional<std::string> path;  // folder; null = model.path, with a fresh head
  int64_t lora_rank = 0;            // rank of the adapter that is trained instead of the weights; 0 = none
  double lora_alpha = 16.0;         // the adapter's product counts lora_alpha / lora_rank times
  std::vector<std::string> target_modules = {"all-linear"};  // ends of names of the adapted matrices
  std::vector<std::string> exclude_modules;                  // exceptions from target_modules
  std::vector<std::string> target_parameters;                // adapted routers and experts of a mixture
  std::optional<std::string> lora_adapter_path;  // PEFT folder of an adapter to continue; sets rank, modules
  [[nodiscard]] bool trains_adapter() const { return lora_rank > 0 || lora_adapter_path.has_value(); }
  bool operator==(const CriticModelConfig&) const = default;
};

struct CriticConfig {                                   // a run has a critic if its estimator asks for values
  double cliprange_value = 0.5;                         // value clip: how far a value may move from the old one
  LossAggMode loss_agg_mode = LossAggMode::kTokenMean;  // aggregation of the value loss
  double grad_clip = 1.0;                               // L2 norm limit; 0 = no clipping
  std::optional<int64_t> ppo_mini_batch_size;           // prompts per update; null = the actor's, as all below
  std::optional<int64_t> ppo_micro_batch_size_per_gpu;  // rows per forward
  std::optional<int64_t> ppo_max_token_len_per_gpu;     // tokens per pass, if cut by tokens
  int64_t ulysses_sequence_parallel_size = 1;           // ranks that share the tokens of a pass
  std::optional<int64_t> ppo_epochs;                    // passes over the batch of a step
  CriticModelConfig model;
  OptimConfig optim{.lr = 1e-5};
  bool operator==(const CriticConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

inline constexpr auto cuts_critic_by_rows = [](const auto& k) -> bool {
  return !k.config.actor.use_dynamic_bsz &&
         (k.config.critic.ppo_micro_batch_size_per_gpu || k.config.actor.ppo_micro_batch_size_per_gpu);
};

inline constexpr auto why_critic_by_rows = [](const auto& k) -> std::string {
  const bool own = k.config.critic.ppo_micro_batch_size_per_gpu.has_value();
  return std::string("passes are cut by ") + (own ? "critic" : "actor") +
         ".ppo_micro_batch_size_per_gpu (set actor.use_dynamic_bsz=true)";
};

template <class Keys>
void describe_critic(Keys& keys) {
  keys.compared("cliprange_value", &CriticConfig::cliprange_value,
                "How far a value may move from its old value before it is clipped.")
      .above(0)
      .as_in_verl("0.5");
  keys.compared("loss_agg_mode", &CriticConfig::loss_agg_mode,
                "How the value loss per token becomes one number. See actor.loss_agg_mode.");
  keys.compared("grad_clip", &CriticConfig::grad_clip, "Maximum L2 norm of the gradient of an update. 0: no clipping.")
      .at_least(0)
      .as_in_verl("1.0");
  keys.compared("ppo_mini_batch_size", &CriticConfig::ppo_mini_batch_size,
                "Prompts per update. null: as many rows per update as the policy.")
      .at_least(1)
      .as_in_verl("null");
  keys.free("ppo_micro_batch_size_per_gpu", &CriticConfig::ppo_micro_batch_size_per_gpu,
            "Rows in one forward and backward pass. null: the actor's.")
      .at_least(1)
      .as_in_verl("null")
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.actor.use_dynamic_bsz; },
          "actor.use_dynamic_bsz cuts passes by tokens");
  keys.free("ppo_max_token_len_per_gpu", &CriticConfig::ppo_max_token_len_per_gpu,
            "Tokens in one pass, if passes are cut by tokens. null: the actor's.")
      .at_least(1)
      .as_in_verl("null")
      .no_effect(kInTrain, cuts_critic_by_rows, why_critic_by_rows);
  keys.free(
          "ulysses_sequence_parallel_size", &CriticConfig::ulysses_sequence_parallel_size,
          "Ranks that share the tokens of each pass of the critic, as actor.ulysses_sequence_parallel_size does for the "
          "policy. It does not follow the actor's.")
      .at_least(1)
      .at_most(kMostRanks)
      .as_in_verl("1");
  keys.compared("ppo_epochs", &CriticConfig::ppo_epochs,
                "Passes of the updates over the rows of a step. null: the actor's.")
      .at_least(1)
      .at_most(1'000'000)
      .as_in_verl("null");
}

template <class Keys>
void describe_critic_model(Keys& keys) {
  keys.compared("path", &CriticModelConfig::path,
                "Model folder that the critic starts from. A sequence classifier with one label is used as it is. A "
                "language model gets a random value head. null: model.path.")
      .place()
      .as_in_verl("null");
  const auto has_no_adapter = [](const auto& k) {
    return k.config.critic.model.lora_rank == 0 || k.config.critic.model.lora_adapter_path;
  };
  const auto why_none = [](const auto& k) -> std::string {
    return k.config.critic.model.lora_adapter_path
               ? "the adapter of critic.model.lora_adapter_path has its own"
               : "critic.model.lora_rank is 0, so all weights of the critic are trained";
  };
  keys.compared(
          "lora_rank", &CriticModelConfig::lora_rank,
          "Rank of a LoRA adapter of the critic. The adapter and the value head are trained and the weights are "
          "frozen. If the policy has an adapter too and both start from the same folder, they share the memory of "
          "the base. 0: no adapter; all weights are trained.")
      .at_least(0)
      .at_most(65536)
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.critic.model.lora_adapter_path.has_value(); },
          "the adapter of critic.model.lora_adapter_path has its own");
  keys.compared("lora_alpha", &CriticModelConfig::lora_alpha,
                "Scale of the adapter: its product is multiplied by lora_alpha / lora_rank.")
      .above(0)
      .at_most(1e9)
      .no_effect(kInTrain, has_no_adapter, why_none);
  keys.compared("target_modules", &CriticModelConfig::target_modules,
                "Matrices that get an adapter. See model.target_modules.")
      .no_effect(kInTrain, has_no_adapter, why_none);
  keys.compared("exclude_modules", &CriticModelConfig::exclude_modules,
                "Matrices that get no adapter although target_modules matches them.")
      .no_effect(kInTrain, has_no_adapter, why_none);
  keys.compared("target_parameters", &CriticModelConfig::target_parameters,
                "Experts and routers of a mixture that get an adapter. See model.target_parameters.")
      .no_effect(kInTrain, has_no_adapter, why_none);
  keys.compared(
          "lora_adapter_path", &CriticModelConfig::lora_adapter_path,
          "Folder of a LoRA adapter in PEFT's format that the critic continues, such as that of a reward model. It "
          "must hold the value head (task type SEQ_CLS). All settings of the adapter come from the folder. null: "
          "a new adapter if lora_rank is above 0.")
      .place()
      .as_in_verl("null");
}

template <class Catalog>
void describe_critic_section(Catalog& catalog) {
  auto keys = catalog.table("critic",
                            "The value model. A run has one if algorithm.adv_estimator asks for values (gae). "
                            "`objective eval --critic` also reads these keys.",
                            [](auto& run) -> CriticConfig& { return run.critic; });
  keys.unread_by(kInSft);
  keys.no_effect_by_plugins(
      kInTrain, [](const auto& k) { return !k.plugins->has_critic; },
      [](const auto& k) { return "there is no critic (" + k.plugins->estimator + " asks for no values)"; });
  describe_critic(keys);
  auto model = catalog.table("critic.model", "The weights that the critic starts from.",
                             [](auto& run) -> CriticModelConfig& { return run.critic.model; });
  model.unread_by(kInSft);
  describe_critic_model(model);
  describe_optim_section(
      catalog, "critic.optim", [](auto& run) -> auto& { return run.critic.optim; }, kInTrain, "1e-05");
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
