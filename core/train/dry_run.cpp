// `train --dry-run`: what a run would do, without loading weights or making a folder: the batch arithmetic, the steps
// and updates that follow from the data, and an estimate of memory by part. The rows are read and checked as the run
// reads them; files that plugins name are looked for.
#include <algorithm>

#include "config/check.h"
#include "config/full_kl.h"
#include "config/show.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "learn/objective/loss_settings.h"
#include "model/adapters/trained_lora.h"
#include "model/head/full_kl.h"
#include "model/layers/recompute.h"
#include "model/weights/model_config.h"
#include "train/plugin_files.h"
#include "train/policy_folder.h"
#include "train/run_data.h"
#include "train/run_parts.h"
#include "train/trainer.h"

namespace mortise {

namespace {

struct MemoryEstimate {
  double weights = 0, gradients = 0, moments = 0, reference = 0, activations = 0, rollout = 0, kv_cache = 0;
  double head = 0, critic = 0, reward_models = 0;
  [[nodiscard]] double total() const {
    return weights + gradients + moments + reference + activations + head + rollout + kv_cache + critic + reward_models;
  }
};

// Bytes that the layers keep for backward in a pass over so many tokens.
double activation_bytes(const ModelConfig& model, const RunConfig& config, double tokens) {
  const int64_t element = config.model.dtype == "float64" ? 8 : 4;
  const LayerMemory layer = layer_memory(model, element);
  const auto kept = tokens * static_cast<double>(layer.kept);
  const auto layers = static_cast<double>(model.num_layers);
  const std::optional<int64_t> budget = learner_options(config).pass.activation_bytes;
  if (!budget) return kept * layers;
  const int64_t again = layers_to_recompute(model, element, static_cast<int64_t>(tokens), *budget);
  const auto recomputed = static_cast<double>(again);
  // One of them is whole while backward is in it, when the others that are kept are gone.
  const double at_rest = tokens * static_cast<double>(layer.recomputed) * recomputed + kept * (layers - recomputed);
  return again == model.num_layers ? at_rest + kept : at_rest;
}

// Bytes of the head in a pass over so many tokens, with the KL over the whole vocabulary where there is one: its chunk
// comes before the loss's, while the reference runs beside the policy, whose layers keep nothing.
double head_pass_bytes(const ModelConfig& model, const RunConfig& config, double tokens) {
  const int64_t element = config.model.dtype == "float64" ? 8 : 4;
  const auto rows = static_cast<int64_t>(tokens);
  const auto loss = static_cast<double>(head_bytes(rows, model.hidden_size, model.vocab_size, element));
  if (!config.actor.use_kl_loss || config.actor.kl_loss_type != kFullKl) return loss;
  const auto chunk = static_cast<double>(full_kl_bytes(rows, model.hidden_size, model.vocab_size, element));
  const double one_layer = tokens * static_cast<double>(layer_memory(model, element).kept);
  return std::max(loss, std::max(chunk, one_layer));
}

// Bytes.
MemoryEstimate estimate_memory(const ModelConfig& model, const std::optional<LoraSize>& lora, const RunConfig& config) {
  const double element = config.model.dtype == "float64" ? 8.0 : 4.0;
  const auto parameters = static_cast<double>(model.num_parameters());
  const double trained = lora ? static_cast<double>(lora->num_trained) : parameters;
  MemoryEstimate bytes;
  bytes.weights = parameters * element;
  if (lora) bytes.weights += static_cast<double>(lora->num_trained + lora->num_adapted) * element;
  bytes.gradients = trained * element;
  bytes.moments = 2.0 * trained * element;
  const bool has_reference = config.actor.use_kl_loss || config.algorithm.use_kl_in_reward;
  if (has_reference && !lora) bytes.reference = parameters * element;  // with an adapter it is a view of the base
  const double row_tokens = static_cast<double>(config.data.max_prompt_length + response_length(config));
  const MicroBatchOptions pass = micro_batch_options(config);
  auto tokens = static_cast<double>(pass.token_budget);
  if (pass.rows > 0) tokens = row_tokens * static_cast<double>(pass.rows);
  const BatchPlan plan = plan_batches(config);
  tokens = std::min(tokens, row_tokens * static_cast<double>(std::max<int64_t>(1, plan.rows_per_update)));
  bytes.activations = activation_bytes(model, config, tokens);
  bytes.head = head_pass_bytes(model, config, tokens);
  // The generator's own copy of the matrices.
  if (config.model.dtype == "float32" && config.rollout.kernels != "plain")
    bytes.rollout = parameters * (config.rollout.dtype == "bfloat16" ? 2.0 : 4.0);
  const auto rows = static_cast<double>(std::min(config.rollout.max_num_seqs, plan.rows_per_step));
  bytes.kv_cache = std::min(rows * row_tokens * 2.0 * static_cast<double>(model.kv_size() * model.num_layers) * 4.0,
                            static_cast<double>(config.rollout.kv_cache_mib << 20));
  return bytes;
}

// Of the adapter that would be trained. Memory for the weights is asked for and never touched.
Result<std::optional<LoraSize>> estimate_lora(Env& env, const ModelConfig& model, const LoadedConfig& loaded) {
  const ModelSection& section = loaded.config.model;
  if (section.lora_rank == 0 && !section.lora_adapter_path) return std::optional<LoraSize>();
  const ParameterStore store = allocate_parameters(model, at::kFloat, /*requires_grad=*/false);
  if (section.lora_adapter_path) {
    const LoraConfig config = TRY(read_lora_config(env, *section.lora_adapter_path));
    const auto modules = TRY(list_lora_modules(env, *section.lora_adapter_path, store.parameters));
    return std::optional(measure_lora(store.parameters, modules, TRY(config.ranks_of(modules))));
  }
  const LoraChoice choice{section.lora_rank, section.lora_alpha, section.target_modules, section.exclude_modules};
  auto modules = choose_lora_modules(store.parameters, choice);
  if (!modules.ok()) {
    modules.error().where = loaded.where("model.target_modules");
    return std::move(modules).error();
  }
  const LoraConfig config = make_lora_config(choice, *modules, store.parameters);
  return std::optional(measure_lora(store.parameters, *modules, TRY(config.ranks_of(*modules))));
}

// Bytes of a critic: weights, gradients and moments, all of them trained.
Result<double> critic_bytes(Env& env, const PluginRegistry& registry, const RunConfig& config) {
  const PluginRef estimator = TRY(registry.find("advantage_estimator", config.algorithm.adv_estimator));
  if (!estimator.plugin->requires_input("values")) return 0.0;
  const Path folder = config.critic.model.path.value_or(config.model.path);
  const ModelConfig critic = TRY(critic_config(env, folder));
  return 4.0 * static_cast<double>(critic.num_parameters()) * (config.model.dtype == "float64" ? 8.0 : 4.0);
}

struct RunEstimate {
  ModelConfig model;
  std::optional<LoraSize> lora;
  int64_t train_rows = 0, val_rows = 0, steps = 0;
  BatchPlan plan;
  MemoryEstimate memory;
};

Result<RunEstimate> estimate(Env& env, const PluginRegistry& registry, const LoadedConfig& loaded) {
  const RunConfig& config = loaded.config;
  RunEstimate out;
  const PolicyFolder folder = TRY(PolicyFolder::load(env, config));
  out.model = TRY(read_model_folder_config(env, config.model.path));
  out.lora = TRY(estimate_lora(env, out.model, loaded));
  const PromptEncoder encoder = folder.encoder(config);
  const RunKind kind = config.trainer.val_only ? RunKind::kEval : RunKind::kTrain;
  const RowSource rows{env, loaded, registry, encoder, out.model, kind};
  std::optional<Dataset> train, val;
  if (kind == RunKind::kTrain) {
    TRY(check_policy(env, config.model.path));
    train = TRY(load_train_prompts(rows));
    TRY(PromptSource::create(*train, train_source_options(config)));
    out.train_rows = train->size();
  }
  if (!config.data.val_files.empty()) {
    val = TRY(load_val_prompts(rows));
    out.val_rows = val->size();
  }
  TRY(settle_columns(rows, train ? &*train : nullptr, val ? &*val : nullptr));
  out.plan = plan_batches(config);
  out.steps = plan_total_steps(config, out.train_rows);
  out.memory = estimate_memory(out.model, out.lora, config);
  out.memory.critic = TRY(critic_bytes(env, registry, config));
  out.memory.reward_models = TRY(reward_model_bytes(env, registry, loaded));
  return out;
}

Json json_of(const RunEstimate& run, const RunConfig& config) {
  const MemoryEstimate& memory = run.memory;
  const auto bytes = [](double value) { return static_cast<uint64_t>(value); };
  return {{"config", config_to_json(config)},
          {"parameters", run.model.num_parameters()},
          {"trained_parameters", run.lora ? run.lora->num_trained : run.model.num_parameters()},
          {"train_rows", run.train_rows},
          {"val_rows", run.val_rows},
          {"steps_per_epoch", run.train_rows / run.plan.prompts_per_step},
          {"prompts_per_step", run.plan.prompts_per_step},
          {"rows_per_step", run.plan.rows_per_step},
          {"rows_per_update", run.plan.rows_per_update},
          {"updates_per_step", run.plan.updates_per_step},
          {"steps", run.steps},
          {"updates", run.steps * run.plan.updates_per_step},
          {"memory_bytes",
           {{"weights", bytes(memory.weights)},
            {"gradients", bytes(memory.gradients)},
            {"optimizer", bytes(memory.moments)},
            {"reference", bytes(memory.reference)},
            {"activations", bytes(memory.activations)},
            {"head", bytes(memory.head)},
            {"rollout_weights", bytes(memory.rollout)},
            {"kv_cache", bytes(memory.kv_cache)},
            {"critic", bytes(memory.critic)},
            {"reward_models", bytes(memory.reward_models)},
            {"total", bytes(memory.total())}}}};
}

std::string text_of(const RunEstimate& run, const LoadedConfig& loaded, const PluginInfo& loss) {
  const BatchPlan& plan = run.plan;
  const MemoryEstimate& memory = run.memory;
  const auto size = [](double bytes) { return format_bytes(static_cast<uint64_t>(bytes)); };
  ShowOptions show;
  show.remarks = loss_remarks(loss, loaded);
  std::string out = config_to_toml(loaded, show);
  for (const std::string& note : loaded.notes) out += "\n# " + one_line(note);
  out += "\n# " + one_line(describe_loss(loss, loaded)) + "\n";
  out += "# model: " + format_count(run.model.num_parameters()) + " parameters, " +
         std::to_string(run.model.num_layers) + " layers";
  out += (run.lora ? "; trained: an adapter of " + format_count(run.lora->num_trained) : "") + "\n";
  out += "# data: " + format_count(run.train_rows) + " training rows, " +
         std::to_string(run.train_rows / plan.prompts_per_step) + " steps per epoch";
  out += (run.val_rows > 0 ? "; " + format_count(run.val_rows) + " validation rows" : "") + "\n";
  out += "# step: " + std::to_string(plan.prompts_per_step) + " prompts x " + std::to_string(loaded.config.rollout.n) +
         " samples = " + std::to_string(plan.rows_per_step) + " rows; " + std::to_string(plan.updates_per_step) +
         " updates of " + std::to_string(plan.rows_per_update) + " rows\n";
  out +=
      "# run: " + format_count(run.steps) + " steps, " + format_count(run.steps * plan.updates_per_step) + " updates\n";
  out += "# memory, about: weights " + size(memory.weights) + ", gradients " + size(memory.gradients) + ", optimizer " +
         size(memory.moments);
  if (memory.reference > 0) out += ", reference " + size(memory.reference);
  if (memory.critic > 0) out += ", critic " + size(memory.critic);
  if (memory.reward_models > 0) out += ", reward models " + size(memory.reward_models);
  out += ", activations " + size(memory.activations) + " at most, the head " + size(memory.head) +
         ", the generator's copy of the weights " + size(memory.rollout) + ", KV cache " + size(memory.kv_cache) +
         " at most; " + size(memory.total()) + " in all\n";
  return out;
}

}  // namespace

Result<std::string> dry_run(Env& env, const LoadedConfig& loaded, bool json) {
  const PluginRegistry registry = TRY(open_registry(loaded));
  TRY(check_plugins(registry, loaded, RunKind::kTrain));
  TRY(check_plugin_files(env, registry, loaded));
  const RunEstimate run = TRY(estimate(env, registry, loaded));
  if (json) return dump_json(json_of(run, loaded.config), 2) + "\n";
  const PluginRef loss = TRY(registry.find("policy_loss", loaded.config.actor.policy_loss.loss_mode));
  return text_of(run, loaded, *loss.plugin);
}

}  // namespace mortise
