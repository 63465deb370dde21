// See reuse_rules.h.
#include "train/run/reuse_rules.h"

#include <fmt/core.h>

#include <span>

#include "config/batch_plan.h"
#include "model/layers/sampled_forward.h"

namespace mortise {

namespace {

struct Reason {
  bool holds;
  const char* text;
};

std::optional<std::string> first_of(std::span<const Reason> reasons) {
  for (const Reason& reason : reasons) {
    if (reason.holds) return reason.text;
  }
  return std::nullopt;
}

// The run learns rows that are not, one by one, those that it has just sampled.
std::optional<std::string> why_other_rows(const RunConfig& config) {
  const AlgorithmConfig& algorithm = config.algorithm;
  const BatchPlan plan = plan_batches(config);
  const Reason reasons[] = {
      {config.trainer.val_only, "the run only validates"},
      {config.rollout.name != RolloutConfig().name, "the rollout backend is not native"},
      {config.trainer.steps_ahead() > 0, "trainer.mode is not sync"},
      {config.rollout.over_sampling > 1, "rollout.over_sampling is above 1"},
      {config.rollout.multi_turn.enable, "rollout.multi_turn is on"},
      {algorithm.replay_buffer.enable, "algorithm.replay_buffer is on"},
      {algorithm.use_pf_ppo, "algorithm.use_pf_ppo draws other rows"},
      {plan.carries_rows, "actor.carry_rows is on"},
      // Only the first one reads them, so little is gained without the pass for old_log_prob, which reads all rows.
      {plan.rows_per_update != plan.rows_per_step && algorithm.rollout_correction.bypass_mode,
       "a step has several mini-batches, and algorithm.rollout_correction.bypass_mode is on"},
  };
  return first_of(reasons);
}

// A rank has only a part of the numbers, or of the weights.
std::optional<std::string> why_not_on_ranks(const RunConfig& config) {
  const Reason reasons[] = {
      {config.actor.ulysses_sequence_parallel_size > 1, "ranks share tokens (actor.ulysses_sequence_parallel_size)"},
      {config.actor.tensor_model_parallel_size > 1, "ranks share layers (actor.tensor_model_parallel_size)"},
      {config.rollout.tensor_model_parallel_size > 1, "ranks sample together (rollout.tensor_model_parallel_size)"},
      {config.ranks.zero_stage == 3, "ranks.zero_stage is 3"},
      {config.algorithm.filter_groups.enable, "ranks share the groups of algorithm.filter_groups"},
  };
  return first_of(reasons);
}

// The sampler and the update compute in different ways.
std::optional<std::string> why_other_numbers(const RunConfig& config, const ModelConfig& model, const RunFacts& facts) {
  // It rounds the matrices of a model that trains in float32.
  const bool rounds_copy = config.model.dtype == ModelDtype::kFloat32 && config.rollout.dtype == DecodeDtype::kBfloat16;
  // Later updates would compare log-probs that round other numbers with those of sampling.
  const bool compares = config.model.dtype == ModelDtype::kBfloat16 && plan_batches(config).updates_per_step > 1;
  // A reference computes all layers itself: at the same weights its log-probs would differ by what rounding changes.
  const bool has_reference = config.actor.use_kl_loss || config.algorithm.use_kl_in_reward;
  const Reason reasons[] = {
      {facts.by_operators, "the model is on a GPU"},
      {config.model.dtype == ModelDtype::kFloat64, "model.dtype is float64"},
      {compares, "model.dtype is bfloat16 and a step has several updates"},
      {config.model.dtype == ModelDtype::kBfloat16 && has_reference,
       "model.dtype is bfloat16 and a reference is compared (actor.use_kl_loss, algorithm.use_kl_in_reward)"},
      {rounds_copy, "rollout.dtype is bfloat16 and model.dtype is not"},
      {config.rollout.kernels == DecodeKernels::kPlain, "rollout.kernels is plain"},
      {config.model.layers == LayerPasses::kPlain, "model.layers is plain"},
      {facts.lora_dropout > 0, "the adapter has dropout in updates"},
      {config.actor.neftune_noise_alpha.value_or(0) > 0, "actor.neftune_noise_alpha puts noise into updates"},
      {config.model.enable_gradient_checkpointing, "model.enable_gradient_checkpointing is on"},
      {model.num_expert_layers() > 0, "the model has experts"},
      {model.sandwich_norm, "the model has norms behind attention and MLP"},
  };
  return first_of(reasons);
}

}  // namespace

int64_t sampled_tokens(const RunConfig& config) {
  const BatchPlan plan = plan_batches(config);
  const int64_t prompts = plan.prompts_per_step;
  if (!config.algorithm.filter_groups.enable)
    return prompts * config.data.max_prompt_length + plan.rows_per_step * (response_length(config) - 1);
  return (prompts + config.data.gen_batch_size.value_or(prompts)) * sampled_group_tokens(config);
}

int64_t sampled_group_tokens(const RunConfig& config) {
  if (!config.algorithm.filter_groups.enable) return 0;
  return config.data.max_prompt_length + config.rollout.n * (response_length(config) - 1);
}

double sampled_bytes(const RunConfig& config, const ModelConfig& model) {
  return static_cast<double>(sampled_tokens(config)) * static_cast<double>(SampledForward::bytes_per_token(model));
}

std::optional<std::string> why_not_reused(const RunConfig& config, const ModelConfig& model, const RunFacts& facts) {
  const int64_t budget_mib = config.rollout.reuse_forward_mib;
  if (budget_mib == 0) return "rollout.reuse_forward_mib is 0";
  if (facts.num_ranks > 1) {
    if (auto reason = why_not_on_ranks(config)) return reason;
  }
  if (config.trainer.deterministic) return "trainer.deterministic is on";
  if (auto reason = why_other_rows(config)) return reason;
  if (auto reason = why_other_numbers(config, model, facts)) return reason;
  const double mib = sampled_bytes(config, model) / (1 << 20);
  if (mib <= static_cast<double>(budget_mib)) return std::nullopt;
  return fmt::format("it takes up to {:.0f} MiB, and rollout.reuse_forward_mib is {}", mib, budget_mib);
}

std::string reuse_line(const std::optional<std::string>& why_not) {
  if (!why_not) return "# update: the first one of a step reads what sampling has computed of its rows\n";
  return fmt::format("# update: runs its own forward pass, because {}\n", *why_not);
}

}  // namespace mortise
