// See run_size.h.
#include "train/run/run_size.h"

#include <algorithm>

#include "train/loop/critic.h"
#include "train/run/plugin_files.h"
#include "train/run/policy_folder.h"
#include "train/run/reference.h"
#include "train/run/reuse_rules.h"
#include "train/run/run_device.h"
#include "train/run/run_options.h"
#include "train/run/sequence_rules.h"
#include "train/run/teacher.h"

namespace mortise {
namespace {

// Bytes of a fresh adapter. Memory for the weights is allocated but never touched.
Result<std::optional<LoraSize>> fresh_lora_size(const ModelConfig& model, const LoraChoice& choice,
                                                const LoadedConfig& loaded,
                                                std::string (*place_of)(const LoadedConfig&, const Error&)) {
  const ParameterStore store = allocate_parameters(model, at::kFloat, /*requires_grad=*/false);
  auto plan = plan_fresh_lora(store.parameters, choice);
  if (!plan.ok()) {
    plan.error().where = place_of(loaded, plan.error());
    return std::move(plan).error();
  }
  return std::optional(measure_lora(store.parameters, *plan));
}

// The same of a folder's adapter.
Result<std::optional<LoraSize>> lora_size_of_folder(Env& env, const Path& folder, const ModelConfig& model) {
  const ParameterStore store = allocate_parameters(model, at::kFloat, /*requires_grad=*/false);
  const LoraPlan plan = TRY(plan_lora_of_folder(env, folder, store.parameters));
  return std::optional(measure_lora(store.parameters, plan));
}

// The same of the adapter that would be trained.
Result<std::optional<LoraSize>> estimate_lora(Env& env, const ModelConfig& model, const LoadedConfig& loaded) {
  const ModelSection& section = loaded.config.model;
  if (!section.trains_adapter()) return std::optional<LoraSize>();
  if (!section.lora_adapter_path) return fresh_lora_size(model, lora_choice(section), loaded, lora_place);
  return lora_size_of_folder(env, *section.lora_adapter_path, model);
}

// The same of the critic's adapter.
Result<std::optional<LoraSize>> estimate_critic_lora(Env& env, const ModelConfig& critic, const LoadedConfig& loaded) {
  const CriticModelConfig& section = loaded.config.critic.model;
  if (section.lora_adapter_path) {
    const ParameterStore store = allocate_parameters(critic, at::kFloat, /*requires_grad=*/false);
    const LoraPlan plan = TRY(plan_lora_of_folder(env, *section.lora_adapter_path, store.parameters));
    TRY(check_critic_plan(loaded, plan));
    return std::optional(measure_lora(store.parameters, plan));
  }
  if (section.lora_rank == 0) return std::optional<LoraSize>();
  return fresh_lora_size(critic, critic_lora_choice(section), loaded, critic_lora_place);
}

// Sum and product; and what a start of PiSSA or OLoRA is computed with.
Result<MergeSize> merge_size(Env& env, const Path& folder) {
  if (!is_adapter_folder(env, folder)) return MergeSize();
  const LoraConfig config = TRY(read_lora_config(env, folder));
  const LoraTensors tensors = TRY(read_lora_tensors(env, folder));
  return MergeSize{changes_base(config.init) ? 4.0 : 2.0, tensors.pairs.contains("lm_head")};
}

Path critic_folder(const RunConfig& config) { return config.critic.model.path.value_or(config.model.path); }

// Nothing: the run has no critic.
Result<std::optional<CriticSize>> critic_size(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded,
                                              int num_ranks) {
  const RunConfig& config = loaded.config;
  const PluginRef estimator = TRY(registry.find("advantage_estimator", config.algorithm.adv_estimator));
  if (!needs_critic(*estimator.plugin)) return std::optional<CriticSize>();
  CriticSize out;
  out.model = TRY(critic_config(env, critic_folder(config)));
  TRY(check_sequence_parallel(loaded, "critic.ulysses_sequence_parallel_size",
                              config.critic.ulysses_sequence_parallel_size, out.model, "the critic", num_ranks));
  out.lora = TRY(estimate_critic_lora(env, out.model, loaded));
  out.trained = TRY(trained_size(out.model, out.lora, loaded, "critic.optim"));
  out.units = unit_bytes(out.model, static_cast<double>(num_bytes(config.model.dtype)));
  return std::optional(std::move(out));
}

Result<CriticBytes> critic_bytes(Env& env, const RunConfig& config, const std::optional<CriticSize>& size) {
  if (!size) return CriticBytes();
  const auto& [critic, lora, trained, units] = *size;
  const ModelDtype dtype = config.model.dtype;
  const auto element = static_cast<double>(num_bytes(dtype));
  const double activations =
      critic_activation_bytes(critic, trained, config, critic_pass_options(config, trained.is_on_device),
                              critic_rows_per_update(config, plan_batches(config)));
  MergeSize merge = TRY(merge_size(env, critic_folder(config)));
  merge.has_head = false;  // a critic has another one
  const double started = read_part_bytes(units, merge, element);
  if (lora) {
    const double base = weight_bytes(critic, dtype, WeightCopies::kMasters);
    const double copies = base - static_cast<double>(critic.num_parameters()) * element;
    double weights = base + static_cast<double>(lora->num_added) * element;
    if (shares_policy_base(config)) weights -= static_cast<double>(critic.num_parameters()) * element;
    return CriticBytes{weights,
                       trained.numbers * element,
                       trained.moments,
                       static_cast<double>(lora->num_trained) * element,
                       trained.largest_moments,
                       0.0,
                       activations,
                       units.all,
                       static_cast<double>(lora->num_added - lora->num_trained) * element + copies,
                       started,
                       true,
                       units,
                       trained};
  }
  const double weights = trained_weight_bytes(critic, dtype, config.critic.optim);
  return CriticBytes{weights,
                     trained.numbers * element,
                     trained.moments,
                     static_cast<double>(critic.num_parameters()) * element,
                     trained.largest_moments,
                     config.critic.optim.master_weights ? master_bytes(critic, dtype) : 0.0,
                     activations,
                     spread_bytes(units, dtype, config.critic.optim.master_weights),
                     0.0,
                     started,
                     false,
                     units,
                     trained};
}

// A supervised run as a step of one update. It reads none of the tables that say how steps sample and what they compare to.
RunConfig counted_config(const RunConfig& config, RunKind kind) {
  if (kind != RunKind::kSft) return config;
  RunConfig out = config;
  const RunConfig unset;
  out.actor.use_kl_loss = out.actor.carry_rows = out.algorithm.use_kl_in_reward = false;
  out.actor.rows_per_update.reset();
  out.actor.ppo_epochs = out.rollout.n = 1;
  out.actor.ppo_mini_batch_size = out.data.train_batch_size = config.sft.train_batch_size;
  out.actor.optim = optim_of_sft(config.actor.optim);
  out.actor.policy_loss = unset.actor.policy_loss;
  out.actor.router_replay = unset.actor.router_replay;
  out.rollout.filtered_log_probs = unset.rollout.filtered_log_probs;
  out.rollout.response_length.reset();
  out.data.max_response_length = recorded_length(config) - config.data.max_prompt_length;
  out.algorithm = unset.algorithm;
  out.ref = unset.ref;
  out.sft_mix = unset.sft_mix;
  out.teacher = unset.teacher;
  out.trainer.mode = unset.trainer.mode;
  out.trainer.val_only = false;
  return out;
}

// Nothing is sampled before an update. A run that does not validate with rewards samples nothing at all.
// `num_val`: rows of one validation.
void leave_out_sampling(const LoadedConfig& loaded, int64_t num_val, RunSize& out) {
  RunConfig validation = loaded.config;  // its completions are as long as the settings say, and not as supervised rows
  validation.data.train_batch_size = num_val;
  validation.rollout.n = loaded.config.rollout.val_kwargs.n;
  const bool by_operators = out.trained.is_on_device;
  out.memory.kv_cache = estimate_memory(out.model, out.lora, out.trained, validation, by_operators).kv_cache;
  out.ranks.samples = false;
  out.ranks.step_weight_bytes = out.ranks.row_bytes = out.ranks.rollout_bytes = 0;
  if (num_val > 0 && !loaded.config.reward.empty()) return;
  out.memory.rollout = out.memory.kv_cache = out.memory.graphs = out.memory.expert_pass = out.memory.whole = 0;
}

}  // namespace

Result<RunSize> begin_run_size(Env& env, const LoadedConfig& loaded, RunKind kind) {
  RunSize out;
  out.kind = kind;
  out.config = counted_config(loaded.config, kind);
  out.model = TRY(read_model_folder_config(env, out.config.model.path));
  if (kind == RunKind::kTrain && has_kl_to_reference(loaded.config)) TRY(check_reference(env, loaded, out.model));
  out.lora = TRY(estimate_lora(env, out.model, loaded));
  return out;
}

Result<> measure_run(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded, const DeviceName& device,
                     int num_ranks, int64_t num_val, RunSize& out) {
  const RunConfig& config = out.config;
  const bool is_sft = out.kind == RunKind::kSft, by_operators = device.kind != DeviceKind::kCpu;
  out.plan = plan_batches(config);
  out.trained = TRY(trained_size(out.model, out.lora, loaded, "actor.optim"));
  out.trained.is_on_device = by_operators;
  out.trained.merge = TRY(merge_size(env, config.model.path));
  out.trained.has_kernels = device.kind == DeviceKind::kCuda && why_operators(config).empty();
  out.memory = estimate_memory(out.model, out.lora, out.trained, config, by_operators);
  if (device.kind == DeviceKind::kCuda) out.memory.graphs = graph_bytes(out.model, config);
  if (out.trained.has_kernels) out.memory.expert_pass = expert_pass_bytes(out.model, config);
  out.not_reused = why_not_reused(config, out.model, {num_ranks, by_operators, out.lora ? out.lora->dropout : 0.0});
  if (is_sft) out.not_reused = "a supervised run samples nothing";
  if (!is_sft) out.memory.rows = bytes_of_rows(config);
  if (!out.not_reused) out.memory.sampled = sampled_bytes(config, out.model);
  UnitBytes units = unit_bytes(out.model, static_cast<double>(num_bytes(config.model.dtype)));
  units.window = vocabulary_window(out.model, out.trained, config);
  std::optional<CriticSize> size_of_critic;
  if (!is_sft) size_of_critic = TRY(critic_size(env, registry, loaded, num_ranks));
  if (size_of_critic) {
    size_of_critic->trained.is_on_device = by_operators;
    size_of_critic->trained.has_kernels = out.trained.has_kernels;
    size_of_critic->units.window = critic_window(size_of_critic->model, size_of_critic->trained, config);
  }
  out.ranks = estimate_ranks(config, out.model, out.plan, units, out.trained, num_ranks);
  if (size_of_critic) out.ranks.critic_bytes = critic_bytes_sent(config, out.plan, *size_of_critic, num_ranks);
  out.trained_state_bytes = out.memory.moments;
  const CriticBytes critic = TRY(critic_bytes(env, config, size_of_critic));
  out.memory.critic = critic.weights + critic.gradients + critic.moments;
  out.critic_state_bytes = critic.saved_weights + critic.moments;
  share_memory(out.model, units, out.trained, config, out.lora.has_value(), num_ranks, critic, out.memory);
  offload_memory(out.model, out.trained, config, out.lora.has_value(), num_ranks, critic, out.memory);
  // Policy and critic learn one after the other.
  out.memory.activations = std::max(out.memory.activations, critic.activations);
  if (is_sft) {
    leave_out_sampling(loaded, num_val, out);
  } else if (const auto teacher = TRY(teacher_config(env, loaded, out.model.vocab_size, num_ranks))) {
    out.memory.teacher = weight_bytes(*teacher, config.model.dtype, WeightCopies::kNoMasters);
  }
  out.memory.reward_models = TRY(reward_model_bytes(env, registry, loaded));
  return {};
}

}  // namespace mortise
