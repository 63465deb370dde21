// [actor]: the policy's updates: batches, loss, optimizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/keys/control.h"
#include "config/keys/optim.h"
#include "config/keys/ranks.h"
#include "config/keys/router.h"
#include "foundation/base/choice.h"
#include "foundation/base/isolation.h"
#include "foundation/batch/token_weight.h"
#include "foundation/formats/json.h"

namespace mortise {

struct PolicyLossConfig {
  std::string loss_mode = "vanilla";       // policy loss plugin
  Isolation isolation = Isolation::kNone;  // whether it runs in a worker process
  Json params = Json::object();            // every other key of [actor.policy_loss]: parameters of the plugin
  bool operator==(const PolicyLossConfig&) const = default;
};

struct EntropyControlConfig {
  Control type = Control::kFixed;  // fixed: actor.entropy_coeff is the coefficient; adaptive: its first value
  double target_entropy = 0.2;     // nats per token, adaptive only (TRL: entropy_target)
  double delta = 0.005;            // step of the coefficient after an update (TRL: entropy_coef_delta)
  double min_coeff = 0.0;          // TRL: entropy_coef_min
  double max_coeff = 1.0;          // TRL: entropy_coef_max
  bool operator==(const EntropyControlConfig&) const = default;
};

struct ActorConfig {
  int64_t ppo_mini_batch_size = 256;                    // prompts per update, over all ranks
  std::optional<int64_t> rows_per_update;               // where updates hold parts of groups; null = whole groups
  bool carry_rows = false;                              // sizes need not divide: updates hold rows of two steps
  std::optional<int64_t> ppo_micro_batch_size_per_gpu;  // rows per forward; null = by ppo_max_token_len_per_gpu
  bool use_dynamic_bsz = false;                         // cut by tokens even if a row count is given
  std::optional<int64_t> ppo_max_token_len_per_gpu;     // tokens per micro-batch, if cut by tokens; null = auto
  int64_t ulysses_sequence_parallel_size = 1;           // ranks that share the tokens of a pass
  int64_t tensor_model_parallel_size = 1;               // ranks that share the matrices of each layer
  int64_t ppo_epochs = 1;                               // passes over the batch of a step (TRL: num_iterations)
  bool shuffle = false;                                 // a new order of rows in every pass
  double grad_clip = 1.0;                               // L2 norm limit (TRL: max_grad_norm); 0 = no clipping
  std::optional<double> neftune_noise_alpha;            // noise in the embeddings of updates; null = none
  std::optional<double> clip_ratio;                     // null = the loss's own; given to losses that have it
  std::optional<double> clip_ratio_low;                 // null = clip_ratio (TRL: epsilon)
  std::optional<double> clip_ratio_high;                // null = clip_ratio (TRL: epsilon_high)
  std::optional<double> clip_ratio_c;                   // dual clip bound, above 1; 0 = none; null = the loss's own
  OrAuto<LossAggMode> loss_agg_mode;                    // auto = the loss's own
  std::optional<double> loss_scale_factor;              // for seq-mean-token-sum-norm; null = data.max_response_length
  OrAuto<LossAggMode> kl_agg_mode;                      // aggregation of the KL term; auto = as the loss
  OrAuto<LossAggMode> entropy_agg_mode;                 // that of the entropy bonus; auto = as the loss
  bool loss_scale_by_rows = true;                       // that mode also divides by rows (verl of Jan 2026: false)
  LossAggRows loss_agg_rows = LossAggRows::kNonempty;   // rows that count in a mean over rows
  double entropy_coeff = 0.0;                           // subtracted bonus (TRL: entropy_coef)
  double top_entropy_quantile = 1.0;                    // share of an update's tokens, by entropy, in the policy term
  std::optional<double> off_policy_mask_threshold;      // leave out staler rows with A < 0; null = none
  bool use_kl_loss = false;                             // add kl_loss_coef * KL(policy, reference) to the loss
  double kl_loss_coef = 0.001;                          // TRL: beta
  std::string kl_loss_type = "low_var_kl";              // KL plugin
  Json kl_params = Json::object();                      // further parameters of that plugin
  Isolation kl_isolation = Isolation::kNone;            // whether it runs in a worker process
  std::optional<double> router_aux_loss_coef = 0.0;     // for mixtures of experts; null = the model's own
  double router_z_loss_coef = 0.0;                      // for mixtures of experts
  RouterReplayConfig router_replay;
  EntropyControlConfig entropy_ctrl;
  PolicyLossConfig policy_loss;
  OptimConfig optim;
  bool operator==(const ActorConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

inline constexpr auto has_one_update_a_pass = [](const auto& k) -> bool {
  return k.config.actor.shuffle && plan_batches(k.config).updates_per_epoch_pass <= 1;
};

// How ranks compute a pass together.
template <class Keys>
void describe_actor_groups(Keys& keys) {
  keys.free(
          "ulysses_sequence_parallel_size", &ActorConfig::ulysses_sequence_parallel_size,
          "Ranks that share the tokens of each pass of the policy (sequence parallel). Long rows then need less memory "
          "on each. Must divide the number of ranks, and the model's heads must divide among so many ranks. 1: every "
          "rank computes passes of its own.")
      .at_least(1)
      .at_most(kMostRanks)
      .as_in_verl("1")
      .swift("sequence_parallel_size", "1");
  keys.free(
          "tensor_model_parallel_size", &ActorConfig::tensor_model_parallel_size,
          "Ranks that share the matrices of each layer, the embedding and the head (tensor parallel), of the policy and its "
          "reference. In updates and log-prob passes each rank has only its part of these weights, their gradients and "
          "optimizer states. Must divide the number of ranks, and the model's heads and the size of its MLP must divide "
          "among so many ranks. 1: every rank has the whole model. (verl: actor.megatron.tensor_model_parallel_size.)")
      .at_least(1)
      .at_most(kMostRanks)
      .verl("actor.megatron.tensor_model_parallel_size");
}

template <class Keys>
void describe_actor_batches(Keys& keys) {
  keys.compared(
          "ppo_mini_batch_size", &ActorConfig::ppo_mini_batch_size,
          "Prompts per update (one optimizer step). An update learns from rollout.n times as many rows. Must divide "
          "data.train_batch_size, unless carry_rows is set.")
      .at_least(1)
      .as_in_verl("256")
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.actor.rows_per_update.has_value(); },
          "actor.rows_per_update decides");
  keys.compared("rows_per_update", &ActorConfig::rows_per_update,
                "Rows (completions) per update, in place of ppo_mini_batch_size. An update may then hold a part of a "
                "group, as in TRL. Must divide data.train_batch_size times rollout.n, unless carry_rows is set. With "
                "shuffle, the engine distributes single rows, so groups are split. null: ppo_mini_batch_size prompts "
                "with all their rows.")
      .at_least(1);
  keys.compared("carry_rows", &ActorConfig::carry_rows,
                "Allow updates whose size does not divide a step, or is larger than a step. The passes of all steps "
                "then form one sequence of rows, and each update takes the next rows of it. Rows that are left at the "
                "end of a step wait, with their log-probs and advantages, for the first update of the next step. Rows "
                "that are left at the end of an epoch become a smaller update. Rows that are left at another end of "
                "the run are not learned from. TRL and ms-swift do this if neither of steps_per_generation and "
                "gradient_accumulation_steps divides the other.")
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.actor.carry_rows && !plan_batches(k.config).carries_rows; },
          "the rows of an update divide those of a step");
  keys.free("ppo_micro_batch_size_per_gpu", &ActorConfig::ppo_micro_batch_size_per_gpu,
            "Maximum rows in one forward and backward pass. Changes memory and speed, never the gradient. An update is "
            "cut into as few passes as hold it, with about the same number of tokens in each. Rows of a prompt stay "
            "together if they fit. null: passes are cut by ppo_max_token_len_per_gpu.")
      .at_least(1)
      .trl("per_device_train_batch_size")
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.actor.use_dynamic_bsz; },
          "actor.use_dynamic_bsz cuts passes by tokens");
  keys.free("use_dynamic_bsz", &ActorConfig::use_dynamic_bsz,
            "Cut passes by ppo_max_token_len_per_gpu even if ppo_micro_batch_size_per_gpu is set.");
  keys.free("ppo_max_token_len_per_gpu", &ActorConfig::ppo_max_token_len_per_gpu,
            "Maximum tokens (prompt and completion, without padding) in one pass, if passes are cut by tokens. The "
            "passes then have about the same number of tokens. With ulysses_sequence_parallel_size it counts the "
            "tokens of each rank. Changes memory and speed, never the gradient. null: 2048 on the CPU, "
            "16384 on a GPU, or the longest possible row if that is more.")
      .at_least(1)
      .no_effect(
          kInTrain,
          [](const auto& k) { return !k.config.actor.use_dynamic_bsz && k.config.actor.ppo_micro_batch_size_per_gpu; },
          "passes are cut by actor.ppo_micro_batch_size_per_gpu (set actor.use_dynamic_bsz=true)");
  describe_actor_groups(keys);
  keys.compared("ppo_epochs", &ActorConfig::ppo_epochs, "Passes of the updates over the rows of a step.")
      .at_least(1)
      .at_most(1'000'000)
      .as_in_verl("1")
      .trl("num_iterations");
  keys.compared("shuffle", &ActorConfig::shuffle,
                "Distribute the step's rows over its updates in a new random order in every pass of ppo_epochs. Groups "
                "stay together, unless rows_per_update is set.")
      .as_in_verl("false")
      .no_effect(kInTrain, has_one_update_a_pass, "an update has all rows of its step");
  keys.compared("grad_clip", &ActorConfig::grad_clip,
                "Maximum L2 norm of the gradient of an update. A larger gradient is scaled down to it. 0: no clipping.")
      .at_least(0)
      .as_in_verl("1.0")
      .trl("max_grad_norm");
  keys.compared("neftune_noise_alpha", &ActorConfig::neftune_noise_alpha,
                "NEFTune's alpha: updates add noise of at most alpha / sqrt(tokens of the row x numbers of an "
                "embedding) to embeddings (arXiv 2310.05914). null: none.")
      .at_least(0)
      .transformers("neftune_noise_alpha", "null");
}

inline constexpr auto loss_params = [](const auto& k) -> const Json& { return k.config.actor.policy_loss.params; };

template <class Keys>
void describe_clip_range(Keys& keys) {
  keys.compared(
          "clip_ratio", &ActorConfig::clip_ratio,
          "Half-width of the clip range of the importance ratio, on both sides. The policy loss gets it if it has a "
          "parameter of this name. null: the policy loss's own range, in its published form if it has one (0.2 for "
          "vanilla; 3e-4 below and 4e-4 above for gspo).")
      .at_least(0)
      .given_to("policy_loss", loss_params, "actor.policy_loss")
      .no_effect(
          kInTrain | kInObjective,
          [](const auto& k) { return k.config.actor.clip_ratio_low && k.config.actor.clip_ratio_high; },
          "both actor.clip_ratio_low and actor.clip_ratio_high are set");
  keys.compared("clip_ratio_low", &ActorConfig::clip_ratio_low,
                "Clip range below 1: the ratio stays above 1 - clip_ratio_low. The policy loss gets it if it has a "
                "parameter of this name. null: clip_ratio, or the policy loss's own range.")
      .at_least(0)
      .trl("epsilon")
      .given_to("policy_loss", loss_params, "actor.policy_loss");
  keys.compared("clip_ratio_high", &ActorConfig::clip_ratio_high,
                "Clip range above 1: the ratio stays below 1 + clip_ratio_high. The policy loss gets it if it has a "
                "parameter of this name. null: clip_ratio, or the policy loss's own range.")
      .at_least(0)
      .trl("epsilon_high")
      .given_to("policy_loss", loss_params, "actor.policy_loss");
  keys.compared(
          "clip_ratio_c", &ActorConfig::clip_ratio_c,
          "Dual clip (arXiv 1912.09729), above 1: the loss of a token with a negative advantage is at most this many "
          "times the size of the advantage. The policy loss gets it if it has a parameter of this name. 0: off. "
          "null: the policy loss's own value (3 for vanilla).")
      .at_least(0)
      .as_in_verl("3.0")
      .trl("delta")
      .given_to("policy_loss", loss_params, "actor.policy_loss");
}

constexpr bool counts_tokens(LossAggMode mode) {
  return mode == LossAggMode::kTokenMean || mode == LossAggMode::kTokenSum;
}

inline constexpr auto has_no_kl_loss = [](const auto& k) -> bool { return !k.config.actor.use_kl_loss; };

inline constexpr auto has_no_entropy_bonus = [](const auto& k) -> bool {
  return k.config.actor.entropy_coeff == 0 && k.config.actor.entropy_ctrl.type == Control::kFixed;
};

// A term of the actor's loss with a mode of its own that `is_of` is true for.
inline constexpr auto is_used_by_term = [](const auto& k, auto&& is_of) -> bool {
  const ActorConfig& actor = k.config.actor;
  return (!has_no_kl_loss(k) && actor.kl_agg_mode.value && is_of(*actor.kl_agg_mode.value)) ||
         (!has_no_entropy_bonus(k) && actor.entropy_agg_mode.value && is_of(*actor.entropy_agg_mode.value));
};

constexpr bool divides_by_factor(LossAggMode mode) { return mode == LossAggMode::kSeqMeanTokenSumNorm; }
constexpr bool counts_rows(LossAggMode mode) { return !counts_tokens(mode); }

// The critic's loss takes these keys from [actor]. The table of the policy loss decides `auto`.
inline constexpr auto divides_by_no_factor = [](const auto& k) -> bool {
  const OrAuto<LossAggMode>& mode = k.config.actor.loss_agg_mode;
  return !mode.is_auto() && !divides_by_factor(*mode.value) && !divides_by_factor(k.config.critic.loss_agg_mode) &&
         !is_used_by_term(k, divides_by_factor);
};

inline constexpr auto counts_no_rows = [](const auto& k) -> bool {
  const OrAuto<LossAggMode>& mode = k.config.actor.loss_agg_mode;
  return !mode.is_auto() && !counts_rows(*mode.value) && !counts_rows(k.config.critic.loss_agg_mode) &&
         !is_used_by_term(k, counts_rows);
};

// The same for `auto`, once it is decided.
inline constexpr auto is_used_by_auto = [](const auto& k, auto&& is_of) -> bool {
  if (!k.config.actor.loss_agg_mode.is_auto() || is_of(k.plugins->aggregation) || is_used_by_term(k, is_of))
    return true;
  return k.plugins->has_critic && is_of(k.config.critic.loss_agg_mode);
};

inline constexpr auto auto_divides_by_no_factor = [](const auto& k) -> bool {
  return !is_used_by_auto(k, divides_by_factor);
};

inline constexpr auto auto_counts_no_rows = [](const auto& k) -> bool { return !is_used_by_auto(k, counts_rows); };

inline constexpr auto auto_is = [](const auto& k) -> std::string {
  return "the aggregation of " + k.plugins->loss + " is " + std::string(choice_name(k.plugins->aggregation));
};

inline constexpr auto why_auto_no_factor = [](const auto& k) -> std::string {
  return auto_is(k) + ", not seq-mean-token-sum-norm";
};

inline constexpr auto why_auto_no_rows = [](const auto& k) -> std::string {
  return auto_is(k) + ", which counts tokens";
};

inline constexpr auto aggregation_is = [](const auto& k) -> std::string {
  return "actor.loss_agg_mode is " + std::string(choice_name(*k.config.actor.loss_agg_mode.value));
};

inline constexpr auto why_no_factor = [](const auto& k) -> std::string {
  return aggregation_is(k) + ", not seq-mean-token-sum-norm";
};

template <class Keys>
void describe_aggregation(Keys& keys) {
  keys.compared(
          "loss_agg_mode", &ActorConfig::loss_agg_mode,
          "How the loss per token becomes one number. It is always computed over the whole update. token-mean: mean "
          "over tokens. token-sum: sum over tokens. seq-mean-token-mean: mean over a row's tokens, then over rows. "
          "seq-mean-token-sum: sum over a row's tokens, then mean over rows. seq-mean-token-sum-norm: that divided "
          "by loss_scale_factor. prompt-mean: mean over the tokens of a prompt's rows, then over prompts. auto: the "
          "policy loss's own (seq-mean-token-mean for gspo, token-mean for vanilla).")
      .trl("loss_type");
  keys.compared("kl_agg_mode", &ActorConfig::kl_agg_mode,
                "How the KL term of use_kl_loss becomes one number, by the names of loss_agg_mode. auto: as the loss. "
                "verl aggregates sapo and geo_mean by seq-mean-token-mean, and their KL by loss_agg_mode.")
      .no_effect(kInTrain | kInObjective, has_no_kl_loss, "actor.use_kl_loss is false");
  keys.compared(
          "entropy_agg_mode", &ActorConfig::entropy_agg_mode,
          "How the entropy bonus becomes one number, by the names of loss_agg_mode. With top_entropy_quantile it "
          "then counts the tokens of that share alone. auto: as the loss, which counts all tokens. TRL's bonus is "
          "a mean over tokens with every loss: token-mean.")
      .no_effect(kInTrain | kInObjective, has_no_entropy_bonus, "there is no entropy bonus (actor.entropy_coeff is 0)");
  keys.compared("loss_scale_factor", &ActorConfig::loss_scale_factor,
                "The constant that seq-mean-token-sum-norm divides by. null: data.max_response_length.")
      .above(0)
      .no_effect(kInTrain | kInObjective, divides_by_no_factor, why_no_factor)
      .no_effect_by_plugins(kInTrain, auto_divides_by_no_factor, why_auto_no_factor);
  keys.compared(
          "loss_scale_by_rows", &ActorConfig::loss_scale_by_rows,
          "Whether seq-mean-token-sum-norm also divides by the number of rows. false: only the sum over rows, as in "
          "verl before March 2026.")
      .no_effect(kInTrain | kInObjective, divides_by_no_factor, why_no_factor)
      .no_effect_by_plugins(kInTrain, auto_divides_by_no_factor, why_auto_no_factor);
  keys.compared(
          "loss_agg_rows", &ActorConfig::loss_agg_rows,
          "Rows that count in a mean over rows. nonempty leaves out rows without a token to learn from. all counts "
          "them.")
      .no_effect(kInTrain | kInObjective, counts_no_rows, "actor.loss_agg_mode counts tokens, not rows")
      .no_effect_by_plugins(kInTrain, auto_counts_no_rows, why_auto_no_rows);
}

template <class Keys>
void describe_entropy_and_kl(Keys& keys) {
  keys.compared("entropy_coeff", &ActorConfig::entropy_coeff,
                "Coefficient of the entropy bonus, which is subtracted from the loss. 0: no bonus.")
      .as_in_verl("0")
      .trl("entropy_coef");
  keys.compared("use_kl_loss", &ActorConfig::use_kl_loss,
                "Add kl_loss_coef times the KL of the policy to the reference to the loss.")
      .as_in_verl("false");
  keys.compared("kl_loss_coef", &ActorConfig::kl_loss_coef, "Coefficient of the KL term of use_kl_loss.")
      .at_least(0)
      .at_most(1e6)
      .trl("beta")
      .no_effect(kInTrain | kInObjective, has_no_kl_loss, "actor.use_kl_loss is false");
  keys.compared(
          "kl_loss_type", &ActorConfig::kl_loss_type,
          "KL estimator of use_kl_loss, by plugin name (kl = k1, abs, mse = k2, low_var_kl = k3). A trailing + uses "
          "the estimator's value with the gradient of k2. full computes the KL over the whole vocabulary at every "
          "token instead of an estimate; the reference then runs together with the policy in each update.")
      .plugin("kl_estimator")
      .no_effect(kInTrain | kInObjective, has_no_kl_loss, "actor.use_kl_loss is false");
  keys.compared("kl_params", &ActorConfig::kl_params,
                "Further parameters of that estimator. An unknown name is an error.")
      .no_effect(kInTrain | kInObjective, has_no_kl_loss, "actor.use_kl_loss is false");
  keys.free("kl_isolation", &ActorConfig::kl_isolation,
            "Where that estimator runs. none: in the trainer's own process. process: in a worker process, as "
            "actor.policy_loss.isolation says. auto: process if the machine can, else none.")
      .no_effect(kInTrain | kInObjective, has_no_kl_loss, "actor.use_kl_loss is false")
      .no_effect(
          kInTrain | kInObjective, [](const auto& k) { return k.config.actor.kl_loss_type == "full"; },
          "actor.kl_loss_type is full, which is not a plugin");
}

// Which tokens of the policy term count.
template <class Keys>
void describe_actor_masks(Keys& keys) {
  keys.compared(
          "top_entropy_quantile", &ActorConfig::top_entropy_quantile,
          "Share of an update's tokens that carry the policy term and the entropy bonus: those with the highest "
          "entropy (arXiv 2506.01939). The divisors of the aggregation do not change, except with entropy_agg_mode. 1: "
          "all tokens.")
      .above(0)
      .at_most(1)
      .trl("top_entropy_quantile", "1.0")
      .swift("top_entropy_quantile", "1.0");
  keys.compared("off_policy_mask_threshold", &ActorConfig::off_policy_mask_threshold,
                "Leave tokens with a negative advantage out of the policy term if their row drifted too far (arXiv "
                "2512.02556). The drift is the mean over the row of the sampler's log-prob minus the policy's. The old "
                "log-prob is used if the sampler gave none. Rows above the threshold are masked (ms-swift: "
                "off_policy_sequence_mask_delta). null: no mask.")
      .trl("off_policy_mask_threshold", "null")
      .swift("off_policy_sequence_mask_delta", "null");
}

inline constexpr auto is_overruled_aggregation = [](const auto& k) -> bool {
  return k.key == "actor.policy_loss.loss_agg_mode" && !k.config.actor.loss_agg_mode.is_auto();
};

template <class Keys>
void describe_policy_loss(Keys& keys) {
  keys.compared("loss_mode", &PolicyLossConfig::loss_mode,
                "Policy loss, by plugin name: vanilla (PPO clip with dual clip), gspo, or \"pack.id/name@^1.0\".")
      .plugin("policy_loss");
  keys.free("isolation", &PolicyLossConfig::isolation,
            "Where the policy loss runs. none: in the trainer's own process. process: in a worker process with the "
            "limits of [plugins], so that a crash or a hang of the loss is an error and not the end of the program. It "
            "is an error if the machine cannot do this. auto: process if the machine can, else none. The numbers are "
            "the same. Each call then copies its inputs and outputs.");
  keys.compared(
          "params", &PolicyLossConfig::params,
          "Every other key of this table is a parameter of the loss and is checked against its parameters (`mortise "
          "plugin describe NAME` lists them). It replaces the key of the same name in [actor].")
      .inline_table()
      .no_effect(kInTrain | kInObjective, is_overruled_aggregation, aggregation_is);
}

inline constexpr auto keeps_entropy_coeff = [](const auto& k) -> bool {
  return k.config.actor.entropy_ctrl.type == Control::kFixed;
};

template <class Keys>
void describe_entropy_control(Keys& keys) {
  keys.compared(
          "type", &EntropyControlConfig::type,
          "fixed keeps actor.entropy_coeff. adaptive starts from it (Skywork-OR1, arXiv 2505.22312, as in TRL). If the "
          "mean entropy of an update (of the tokens of top_entropy_quantile) is at most target_entropy, the coefficient "
          "rises by delta and the next update has the bonus. Otherwise it falls by delta and the next update has no "
          "bonus.")
      .trl("use_adaptive_entropy");
  keys.compared("target_entropy", &EntropyControlConfig::target_entropy,
                "Nats per token. adaptive keeps the entropy above this value.")
      .at_least(0)
      .trl("entropy_target")
      .no_effect(kInTrain | kInObjective, keeps_entropy_coeff, "actor.entropy_ctrl.type is fixed");
  keys.compared("delta", &EntropyControlConfig::delta,
                "Change of the coefficient after each update. Only used if type is adaptive.")
      .at_least(0)
      .trl("entropy_coef_delta")
      .no_effect(kInTrain | kInObjective, keeps_entropy_coeff, "actor.entropy_ctrl.type is fixed");
  keys.compared("min_coeff", &EntropyControlConfig::min_coeff, "Smallest coefficient. Only used if type is adaptive.")
      .at_least(0)
      .trl("entropy_coef_min")
      .no_effect(kInTrain | kInObjective, keeps_entropy_coeff, "actor.entropy_ctrl.type is fixed");
  keys.compared("max_coeff", &EntropyControlConfig::max_coeff, "Largest coefficient. Only used if type is adaptive.")
      .at_least(0)
      .trl("entropy_coef_max")
      .no_effect(kInTrain | kInObjective, keeps_entropy_coeff, "actor.entropy_ctrl.type is fixed");
}

template <class Catalog>
void describe_actor_section(Catalog& catalog) {
  auto keys = catalog.table("actor", "The policy's updates: batches, loss, optimizer.",
                            [](auto& run) -> ActorConfig& { return run.actor; });
  describe_actor_batches(keys);
  describe_clip_range(keys);
  describe_aggregation(keys);
  describe_entropy_and_kl(keys);
  describe_actor_masks(keys);
  describe_router_losses<ActorConfig>(keys);
  describe_router_replay(catalog);
  auto loss = catalog.table("actor.policy_loss", "The policy loss: its name and its parameters.",
                            [](auto& run) -> PolicyLossConfig& { return run.actor.policy_loss; });
  loss.unread_by(kInSft);
  describe_policy_loss(loss);
  auto entropy = catalog.table("actor.entropy_ctrl", "The coefficient of the entropy bonus.",
                               [](auto& run) -> EntropyControlConfig& { return run.actor.entropy_ctrl; });
  describe_entropy_control(entropy);
  describe_optim_section(
      catalog, "actor.optim", [](auto& run) -> auto& { return run.actor.optim; }, kLearning, "1e-06");
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
