// `--dry-run` of `train` and `sft`: what a run would do, without loading weights or making a folder: the batch
// arithmetic, the steps and updates that follow from the data, the checkpoint that it would continue from, and estimates
// of memory by part and of a checkpoint's size. The rows are read and checked as the run reads them; files that plugins
// name are looked for.
#include <fmt/core.h>

#include <algorithm>

#include "checkpoint/room.h"
#include "config/check.h"
#include "config/show.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "foundation/formats/safetensors.h"
#include "learn/objective/loss_settings.h"
#include "model/adapters/trained_lora.h"
#include "model/weights/model_config.h"
#include "model/weights/names.h"
#include "model/weights/stored_dtype.h"
#include "model/weights/weight_files.h"
#include "train/loop/critic.h"
#include "train/loop/trainer.h"
#include "train/run/device_need.h"
#include "train/run/plugin_files.h"
#include "train/run/policy_folder.h"
#include "train/run/rank_estimate.h"
#include "train/run/reuse_rules.h"
#include "train/run/router_rules.h"
#include "train/run/run_data.h"
#include "train/run/run_device.h"
#include "train/run/run_options.h"
#include "train/run/run_parts.h"
#include "train/run/run_size.h"
#include "train/run/sequence_rules.h"
#include "train/run/turn_parts.h"

namespace mortise {

namespace {

// Bytes of a number that a save as "stored" writes. Matrices in four bits become plain numbers of the embedding's dtype.
Result<double> stored_number_bytes(Env& env, const ModelConfig& model, const Path& folder) {
  uint64_t stored = 0;
  for (const std::string& name : TRY(env.list_dir(folder))) {
    if (!name.ends_with(".safetensors")) continue;
    stored += TRY(env.info(folder / name)).size_bytes;
    if (!model.four_bit) continue;
    const SafetensorsFile file = TRY(SafetensorsFile::open(env, folder / name));
    if (const TensorView* embedding = file.find(kEmbeddingName); embedding != nullptr)
      return static_cast<double>(dtype_bytes(embedding->dtype));
  }
  return static_cast<double>(stored) / static_cast<double>(model.num_parameters());
}

// Bytes of the policy's weights in a checkpoint, and whether a resume can start from them alone.
struct SavedWeights {
  double bytes = 0;
  bool is_exact = false;
};

Result<SavedWeights> saved_weights(Env& env, const ModelConfig& model, const std::optional<LoraSize>& lora,
                                   const RunConfig& config) {
  const SaveOptions save = save_options(config);
  const bool is_double = config.model.dtype == ModelDtype::kFloat64;
  const auto count =
      static_cast<double>(lora && save.lora == LoraSave::kApart ? lora->num_trained : model.num_parameters());
  double element = is_double ? 8.0 : 4.0;
  if (save.dtype == kStoredDtype) {
    element = TRY(stored_number_bytes(env, model, config.model.path));
  } else if (!save.dtype.empty()) {
    element = static_cast<double>(c10::elementSize(TRY(parse_scalar_type(save.dtype))));
  }
  return SavedWeights{count * element, !lora && element >= (is_double ? 8.0 : 4.0)};
}

struct RunEstimate : RunSize {
  int64_t train_rows = 0, val_rows = 0, mix_rows = 0, steps = 0, updates = 0;
  DeviceChoice device;
  double checkpoint_bytes = 0;
  std::optional<uint64_t> free_bytes;  // where the run saves; nothing if the system cannot tell
  std::string resumes_from;            // the checkpoint; empty: a fresh start
};

// Bytes of one: the policy's folder, and the state that a resume needs.
Result<double> checkpoint_bytes(Env& env, const PolicyFolder& folder, const RunEstimate& run, const RunConfig& config) {
  const ModelConfig& model = run.model;
  const SavedWeights weights = TRY(saved_weights(env, model, run.lora, config));
  const auto trained = static_cast<double>(run.lora ? run.lora->num_trained : model.num_parameters());
  const double element = config.model.dtype == ModelDtype::kFloat64 ? 8.0 : 4.0;
  double bytes = weights.bytes + run.trained_state_bytes;
  if (!weights.is_exact) {
    const bool has_masters = run.lora || config.actor.optim.master_weights;
    bytes += has_masters ? trained * element : weight_bytes(model, config.model.dtype, WeightCopies::kNoMasters);
  }
  if (config.ref.sync_steps && run.memory.reference > 0) bytes += static_cast<double>(model.num_parameters()) * element;
  bytes += run.critic_state_bytes;
  for (const std::string& name : TRY(list_tokenizer_files(folder.tokenizer_path, env)))
    bytes += static_cast<double>(TRY(env.info(folder.tokenizer_path / name)).size_bytes);
  return bytes;
}

// The rows of the run, counted and checked as the run reads them.
Result<> count_rows(const RowSource& rows, const Tokenizer& tokenizer, int num_ranks, RunEstimate& out) {
  const LoadedConfig& loaded = rows.loaded;
  std::optional<Dataset> train;
  if (rows.kind != RunKind::kEval) {
    TRY(check_policy(rows.env, loaded.config.model.path));
    TRY(check_routers(loaded, out.model));
    TRY(check_policy_groups(rows.env, loaded, num_ranks, rows.kind == RunKind::kTrain));
    const bool is_sft = rows.kind == RunKind::kSft;
    if (is_sft)
      train = TRY(load_sft_rows(rows, tokenizer));
    else
      train = TRY(load_train_prompts(rows));
    const PromptSource source = TRY(
        PromptSource::create(*train, is_sft ? sft_source_options(loaded.config) : train_source_options(loaded.config)));
    out.train_rows = source.rows_per_epoch();
    if (!is_sft) {
      if (const auto mix = TRY(load_sft_mix_rows(rows, tokenizer))) out.mix_rows = mix->size();
    }
  }
  const std::vector<ValRows> val = TRY(load_val_rows(rows));
  for (const ValRows& one : val) out.val_rows += one.rows.size();
  TRY(settle_columns(rows, train ? &*train : nullptr, val));
  return {};
}

Result<RunEstimate> estimate(Env& env, PluginRegistry& registry, const LoadedConfig& loaded, int num_ranks,
                             RunKind kind) {
  const PolicyFolder folder = TRY(PolicyFolder::load(env, loaded.config));
  RunEstimate out;
  static_cast<RunSize&>(out) = TRY(begin_run_size(env, loaded, kind));
  const RunConfig& config = out.config;
  StartedEnvironment environment;  // its tools are part of the prompts
  if (config.rollout.multi_turn.enable && kind == RunKind::kTrain)
    environment = TRY(start_rewarded_environment(registry, loaded, RunKey()));
  TRY(check_rollout_groups(env, loaded, num_ranks));
  const PromptEncoder encoder = folder.encoder(config, environment.runner ? &environment.tools : nullptr);
  const RunKind rows_kind = kind == RunKind::kTrain && config.trainer.val_only ? RunKind::kEval : kind;
  TRY(count_rows({env, loaded, registry, encoder, out.model, rows_kind}, folder.tokenizer, num_ranks, out));
  if (environment.runner) {
    const Sampling sampling = TRY(rollout_sampling(config, out.model, &folder.tokenizer));
    TRY(make_turn_parts(std::move(environment), loaded, folder, encoder, sampling, alone()));
  }
  out.device = choose_device(loaded, {num_ranks, 0}, rows_kind, &registry);
  TRY(measure_run(env, registry, loaded, out.device.name, num_ranks, out.val_rows, out));
  const bool is_sft = kind == RunKind::kSft;
  out.steps = is_sft ? config.sft.total_training_steps : plan_total_steps(config, out.train_rows);
  out.updates = is_sft ? out.steps : plan_total_updates(config, out.train_rows);
  out.checkpoint_bytes = TRY(checkpoint_bytes(env, folder, out, config));
  if (const auto free = free_bytes_for(env, config.trainer.default_local_dir); free.ok()) out.free_bytes = *free;
  return out;
}

Json memory_json(const MemoryEstimate& memory) {
  const auto bytes = [](double value) { return static_cast<uint64_t>(value); };
  return {{"weights", bytes(memory.weights)},
          {"gradients", bytes(memory.gradients)},
          {"optimizer", bytes(memory.moments)},
          {"reference", bytes(memory.reference)},
          {"activations", bytes(memory.activations)},
          {"attention", bytes(memory.attention)},
          {"head", bytes(memory.head)},
          {"rollout_weights", bytes(memory.rollout)},
          {"kv_cache", bytes(memory.kv_cache)},
          {"decode_graphs", bytes(memory.graphs)},
          {"experts_in_rollout", bytes(memory.expert_pass)},
          {"sampled_forward", bytes(memory.sampled)},
          {"experts", bytes(memory.experts)},
          {"rows", bytes(memory.rows)},
          {"critic", bytes(memory.critic)},
          {"teacher", bytes(memory.teacher)},
          {"reward_models", bytes(memory.reward_models)},
          {"gathered_weights", bytes(memory.gathered)},
          {"whole_parameters_in_step", bytes(memory.stepped)},
          {"whole_weights_in_rollout", bytes(memory.whole)},
          {"part_in_save", bytes(memory.saved)},
          {"read_at_start", bytes(memory.started)},
          {"program", bytes(memory.program)},
          {"offloaded_to_files", bytes(memory.files)},
          {"total", bytes(memory.total())}};
}

Json json_of(const RunEstimate& run, const RunConfig& config) {
  const MemoryEstimate& memory = run.memory;
  const auto bytes = [](double value) { return static_cast<uint64_t>(value); };
  Json free;
  if (run.free_bytes) free = *run.free_bytes;
  return {{"config", config_to_json(config)},
          {"parameters", run.model.num_parameters()},
          {"trained_parameters", static_cast<int64_t>(run.trained.numbers)},
          {"train_rows", run.train_rows},
          {"val_rows", run.val_rows},
          {"sft_mix_rows", run.mix_rows},
          {"sft_mix_rows_per_update", run.mix_rows > 0 ? config.sft_mix.train_batch_size : 0},
          {"steps_per_epoch", steps_per_epoch(run.config, run.train_rows)},
          {"prompts_per_step", run.plan.prompts_per_step},
          {"rows_per_step", run.plan.rows_per_step},
          {"rows_per_update", run.plan.rows_per_update},
          {"updates_per_step",
           run.plan.carries_rows ? Json(run.plan.mean_updates_per_step()) : Json(run.plan.updates_per_step)},
          {"steps", run.steps},
          {"updates", run.updates},
          {"reuses_forward", !run.not_reused},
          {"resumes_from", run.resumes_from.empty() ? Json() : Json(run.resumes_from)},
          {"ranks",
           {{"num_ranks", run.ranks.num_ranks},
            {"most_prompts_per_rank", run.ranks.most_prompts},
            {"fewest_prompts_per_rank", run.ranks.fewest_prompts},
            {"passes_per_update", run.ranks.most_passes},
            {"zero_stage", config.ranks.zero_stage},
            {"sequence_parallel_size", run.ranks.sequence_size},
            {"tensor_parallel_size", run.ranks.tensor_size},
            {"rollout_tensor_parallel_size", run.ranks.rollout_size},
            {"rollout_bytes_sent_per_step", bytes(run.ranks.rollout_bytes)},
            {"bytes_sent_per_update", bytes(run.ranks.bytes_of_update())},
            {"sequence_bytes_sent_per_update", bytes(run.ranks.sequence_bytes)},
            {"tensor_bytes_sent_per_update", bytes(run.ranks.tensor_bytes)},
            {"gradient_bytes_sent_per_update", bytes(run.ranks.gradient_bytes)},
            {"weight_bytes_sent_per_step", bytes(run.ranks.step_weight_bytes)},
            {"row_bytes_sent_per_step", bytes(run.ranks.row_bytes)},
            {"critic_bytes_sent_per_step", bytes(run.ranks.critic_bytes)},
            {"bytes_sent_per_step", bytes(run.ranks.bytes_of_step(run.plan))}}},
          {"device", device_json(config, run.device, device_need(memory, config, run.ranks.num_ranks).most())},
          {"checkpoint_bytes", bytes(run.checkpoint_bytes)},
          {"free_bytes", free},
          {"memory_bytes", memory_json(memory)}};
}

// A line for each part, and their sum.
std::string memory_text(const MemoryEstimate& memory, int num_ranks) {
  const std::pair<const char*, double> parts[] = {{"weights", memory.weights},
                                                  {"gradients", memory.gradients},
                                                  {"optimizer", memory.moments},
                                                  {"reference", memory.reference},
                                                  {"critic", memory.critic},
                                                  {"teacher", memory.teacher},
                                                  {"reward models", memory.reward_models},
                                                  {"activations, at most", memory.activations},
                                                  {"attention of all threads", memory.attention},
                                                  {"head", memory.head},
                                                  {"gathered weights in updates", memory.gathered},
                                                  {"or in steps: parameter copies", memory.stepped},
                                                  {"or in rollouts: other weights", memory.whole},
                                                  {"and experts of a pass in rollouts", memory.expert_pass},
                                                  {"or in saves: one part whole", memory.saved},
                                                  {"or at the start: what is read", memory.started},
                                                  {"generator's copy of the weights", memory.rollout},
                                                  {"KV cache, at most", memory.kv_cache},
                                                  {"graphs of decoding on the GPU", memory.graphs},
                                                  {"what updates reuse, at most", memory.sampled},
                                                  {"experts of the step's tokens", memory.experts},
                                                  {"rows of a step, at most", memory.rows},
                                                  {"the program itself", memory.program}};
  const auto size = [](double bytes) { return format_bytes(static_cast<uint64_t>(bytes)); };
  std::string out = fmt::format("# memory: about {}{}\n", size(memory.total()), num_ranks > 1 ? " per rank" : "");
  for (const auto& [name, bytes] : parts) {
    if (bytes > 0) out += fmt::format("#   {:<33}{:>10}\n", name, size(bytes));
  }
  if (memory.files > 0) out += fmt::format("# offload: about {} in files on the disk\n", size(memory.files));
  return out;
}

std::string updates_of_step(const BatchPlan& plan) {
  if (!plan.carries_rows) return counted(plan.updates_per_step, "update");
  return fmt::format("{:.4g} updates on average", plan.mean_updates_per_step());
}

std::string model_line(const RunEstimate& run) {
  std::string out = fmt::format("# model: {}, {}", counted(run.model.num_parameters(), "parameter"),
                                counted(run.model.num_layers, "layer"));
  if (run.lora) out += "; trained: an adapter of " + format_count(run.lora->num_trained);
  const int64_t trainable = run.lora ? run.lora->num_trained : run.model.num_parameters();
  const int64_t num_frozen = trainable - static_cast<int64_t>(run.trained.numbers);
  if (num_frozen > 0) out += fmt::format("; frozen by actor.optim.groups: {}", format_count(num_frozen));
  return out + "\n";
}

// What it learns from: rows, steps and updates.
std::string rows_text(const RunEstimate& run, const LoadedConfig& loaded) {
  const BatchPlan& plan = run.plan;
  const bool is_sft = run.kind == RunKind::kSft;
  const char* const step = is_sft ? "update" : "step";
  std::string out = fmt::format("# data: {}, {} per epoch", counted(run.train_rows, "training row"),
                                counted(steps_per_epoch(run.config, run.train_rows), step));
  if (run.val_rows > 0) out += "; " + counted(run.val_rows, "validation row");
  out += "\n";
  if (is_sft) {
    out += fmt::format("# update: {} of up to {}\n", counted(plan.rows_per_update, "row"),
                       counted(recorded_length(loaded.config), "token"));
    return out + fmt::format("# run: {}\n", counted(run.updates, "update"));
  }
  out += fmt::format("# step: {} x {} = {}; {} of {}\n", counted(plan.prompts_per_step, "prompt"),
                     counted(loaded.config.rollout.n, "sample"), counted(plan.rows_per_step, "row"),
                     updates_of_step(plan), counted(plan.rows_per_update, "row"));
  if (run.mix_rows > 0) {
    out += fmt::format("# sft_mix: {} in each update, of {}\n",
                       counted(loaded.config.sft_mix.train_batch_size, "supervised row"), run.mix_rows);
  }
  out += fmt::format("# run: {}, {}\n", counted(run.steps, "step"), counted(run.updates, "update"));
  return out + reuse_line(run.not_reused);
}

// `loss`: the policy loss; null in a supervised run.
std::string estimate_text(const RunEstimate& run, const LoadedConfig& loaded, const PluginInfo* loss) {
  const MemoryEstimate& memory = run.memory;
  const auto size = [](double bytes) { return format_bytes(static_cast<uint64_t>(bytes)); };
  ShowOptions show;
  if (loss != nullptr) show.remarks = loss_remarks(*loss, loaded);
  std::string out = config_to_toml(loaded, show);
  for (const std::string& note : loaded.notes) out += "\n# " + one_line(note);
  out += loss != nullptr ? fmt::format("\n# {}\n", one_line(describe_loss(*loss, loaded)))
                         : "\n# loss: the mean cross-entropy of the tokens that are learnt\n";
  out += model_line(run);
  out += rows_text(run, loaded);
  if (!run.resumes_from.empty())
    out += fmt::format("# resume: the run continues from {}\n", one_line(run.resumes_from));
  out += ranks_text(run.ranks, run.plan);
  out += memory_text(memory, run.ranks.num_ranks);
  out += device_line(loaded, run.device, device_need(memory, loaded.config, run.ranks.num_ranks).most());
  out += fmt::format("# disk: about {} for each checkpoint", size(run.checkpoint_bytes));
  if (run.free_bytes)
    out += fmt::format("; {} are free at {}", format_bytes(*run.free_bytes),
                       one_line(loaded.config.trainer.default_local_dir));
  return out + "\n";
}

}  // namespace

Result<std::string> dry_run(Env& env, const LoadedConfig& loaded, ConfigUse use, bool json, const ResumeRequest& resume,
                            int num_ranks) {
  const RunKind kind = use == ConfigUse::kSft ? RunKind::kSft : RunKind::kTrain;
  PluginRegistry registry = TRY(open_registry(loaded));
  TRY(check_plugins(registry, loaded, kind));
  TRY(check_plugin_files(env, registry, loaded));
  const bool samples = kind == RunKind::kTrain;
  if (samples) {
    const PluginRef backend = TRY(registry.find("rollout_backend", loaded.config.rollout.name));
    TRY(check_replay_backend(loaded, *backend.plugin));
  }
  RunEstimate run = TRY(estimate(env, registry, loaded, num_ranks, kind));
  // Refused here as it would be by the run.
  const std::optional<Checkpoint> checkpoint = TRY(find_resume(env, loaded, alone(), registry, kind, resume));
  if (checkpoint) run.resumes_from = checkpoint->path().string();
  if (json) return dump_json(json_of(run, loaded.config), 2) + "\n";
  if (!samples) return estimate_text(run, loaded, nullptr);
  const PluginRef loss = TRY(registry.find("policy_loss", loaded.config.actor.policy_loss.loss_mode));
  return estimate_text(run, loaded, loss.plugin);
}

}  // namespace mortise
