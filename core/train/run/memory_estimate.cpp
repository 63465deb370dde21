// Counts bytes from the shapes of a model and the sizes of a run's batches.
#include "train/run/memory_estimate.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "config/check.h"
#include "config/full_kl.h"
#include "config/optim_groups.h"
#include "generate/device/graphed_decode.h"
#include "learn/optim/weight_shards.h"
#include "model/head/full_kl.h"
#include "model/head/head_windows.h"
#include "model/head/kept_logits.h"
#include "model/layers/attention_products.h"
#include "model/layers/recompute.h"
#include "model/weights/names.h"
#include "model/weights/rounded_matrices.h"
#include "model/weights/tensor_split.h"
#include "train/run/run_options.h"

namespace mortise {

int64_t recorded_length(const RunConfig& config) {
  const int64_t text = config.data.max_prompt_length + config.data.max_response_length;
  return std::max(text, config.sft.max_length.value_or(text));
}

namespace {

// Bytes for each number of the layers' matrices.
double element_of_layers(ModelDtype dtype, WeightCopies copies) {
  const auto element = static_cast<double>(num_bytes(dtype));
  if (dtype != ModelDtype::kBfloat16) return element;
  return copies == WeightCopies::kMasters ? element + 2.0 : 2.0;
}

NumberSizes number_sizes(ModelDtype dtype) { return {num_bytes(dtype), num_product_bytes(dtype)}; }

// Bytes that the layers keep for backward in a pass over so many tokens.
// The layers below `lowest` are not part of backward.
double activation_bytes(const ModelConfig& model, const RunConfig& config, int64_t lowest, double tokens) {
  const NumberSizes sizes = number_sizes(config.model.dtype);
  const LayerMemory layer = layer_memory(model, sizes);
  const auto kept = tokens * static_cast<double>(layer.kept);
  const int64_t below = lowest - 1, layers = model.num_layers - below;
  const std::optional<int64_t> budget = learner_options(config).pass.activation_bytes;
  if (!budget) return kept * static_cast<double>(layers);
  const int64_t first_kept = layers_to_recompute(model, sizes, static_cast<int64_t>(tokens), *budget);
  const int64_t again = std::max<int64_t>(0, first_kept - below);
  // One of them is complete while backward is in it, when the other kept ones are freed.
  const double at_rest = tokens * static_cast<double>(layer.recomputed) * static_cast<double>(again) +
                         kept * static_cast<double>(layers - again);
  return again > 0 && again == layers ? at_rest + kept : at_rest;
}

// Bytes of all threads in attention: each takes a sequence and a head of keys at a time. A shared prompt is one more
// sequence.
double attention_bytes(const ModelConfig& model, const RunConfig& config, int64_t row_tokens, double num_rows) {
  const auto threads = static_cast<double>(config.trainer.num_threads.value_or(at::get_num_threads()));
  const double tasks = 2.0 * num_rows * static_cast<double>(model.num_kv_heads);
  return std::min(threads, tasks) *
         static_cast<double>(AttentionScratch<float>::size(row_tokens, model.head_dim, /*is_backward=*/true) *
                             num_bytes(config.model.dtype));
}

// Tokens of the largest pass over rows of which each has at most `row_tokens`, `num_rows` of them in an update.
double pass_tokens(const MicroBatchOptions& pass, int64_t row_tokens, int64_t num_rows) {
  const int64_t tokens = pass.rows > 0 ? row_tokens * pass.rows : std::max(pass.token_budget, row_tokens);
  return static_cast<double>(std::min(tokens, row_tokens * std::max<int64_t>(1, num_rows)));
}

// Tokens of the policy's largest pass on a rank.
double tokens_on_rank(const RunConfig& config, const BatchPlan& plan) {
  const MicroBatchOptions cut = micro_batch_options(config);
  const int64_t row_tokens = config.data.max_prompt_length + response_length(config);
  double tokens = pass_tokens(cut, row_tokens, plan.rows_per_update);
  if (config.sft_mix.is_on())
    tokens = std::max(tokens, pass_tokens(cut, recorded_length(config), config.sft_mix.train_batch_size));
  return std::ceil(tokens / static_cast<double>(config.actor.ulysses_sequence_parallel_size));
}

// What a pass by windows has in addition: the hidden states' gradients of a window.
double window_gradient_bytes(const ModelConfig& model, const RunConfig& config) {
  const double tokens =
      std::min(tokens_on_rank(config, plan_batches(config)), static_cast<double>(by_windows::kTokensOfGradient));
  return tokens * static_cast<double>(model.hidden_size * num_bytes(config.model.dtype));
}

// Bytes of the head in a pass over so many tokens, with the KL over the whole vocabulary if there is one: its chunk
// comes before the loss's, while the reference runs and the policy's layers keep nothing.
double head_pass_bytes(const ModelConfig& model, const TrainedSize& trained, const RunConfig& config, double tokens) {
  const int64_t element = num_bytes(config.model.dtype), num_parts = config.actor.tensor_model_parallel_size;
  const auto rows = static_cast<int64_t>(tokens);
  const bool is_split = num_parts > 1 && !trained.keeps_vocabulary();
  const int64_t own_vocab = is_split ? split_config(model, num_parts).vocab_size : model.vocab_size;
  const auto loss = static_cast<double>(head_bytes(rows, model.hidden_size, own_vocab, element));
  const double gathered =
      gathered_heads(config, trained).at_once * static_cast<double>(model.vocab_size * model.hidden_size * element);
  if (!has_full_kl(config) && !has_teacher_loss(config)) return std::max(loss, gathered);
  const double chunk = gathered + static_cast<double>(full_kl_bytes(rows, model.hidden_size, own_vocab, element));
  const double one_layer = tokens * static_cast<double>(layer_memory(model, number_sizes(config.model.dtype)).kept);
  return std::max(loss, std::max(chunk, one_layer));
}

// What ranks.zero_stage takes off the memory of a rank. With stage 2 the activations of a pass are gone when its
// gradient is complete, so that only the larger of both counts.
void share_states(const RunConfig& config, int num_ranks, const CriticBytes& critic, MemoryEstimate& memory) {
  if (config.ranks.zero_stage == 0) return;
  const int64_t num_parts = config.trainer.val_only ? 1 : config.actor.tensor_model_parallel_size;
  const double with_same_part = static_cast<double>(num_ranks) / static_cast<double>(num_parts);
  memory.moments /= with_same_part;
  memory.critic -= critic.moments * (1.0 - 1.0 / num_ranks);
  if (config.ranks.zero_stage != 2 || config.trainer.deterministic) return;
  memory.gradients = memory.gradients / with_same_part + std::max(0.0, memory.gradients - memory.activations);
}

// The same units if a rank has these shares of the numbers of each layer, and of embedding and head.
UnitBytes units_of_part(UnitBytes units, double layers, double ends) {
  units.layers *= layers;
  units.layer *= layers;
  units.ends *= ends;
  units.largest_end *= ends;
  units.all = units.layers + units.ends;
  return units;
}

// How many of a layer's bytes its bfloat16 copies take.
double share_of_copies(ModelDtype dtype) {
  return dtype == ModelDtype::kBfloat16 ? 2.0 / static_cast<double>(num_bytes(dtype)) : 0.0;
}

// The most of embedding or head that a pass has: all of it, or a window. A trained window has a gradient, and parts of it are on
// their way.
double end_bytes(const UnitBytes& units, bool is_trained) {
  if (units.window == 0) return units.largest_end;
  return is_trained ? 2.0 * units.window + std::min(units.window, static_cast<double>(Shards::kRoundBytes))
                    : units.window;
}

// What is there in a pass: the open layer and the next one on its way, or the embedding or the head. With an adapter,
// merged matrices and what a start left of the base (`computed`, of all layers) are computed from the base that arrives.
double gathered_bytes(const UnitBytes& units, const TrainedSize& trained, double computed, const RunConfig& config,
                      bool has_lora) {
  const double copies = units.layer * share_of_copies(config.model.dtype);
  if (!has_lora) return std::max(2.0 * (copies > 0 ? copies : units.layer), end_bytes(units, /*is_trained=*/true));
  const double arriving = units.layer * (1.0 + computed / units.layers) + copies;
  const bool keeps_base = trained.reads_base || config.model.layers == LayerPasses::kPlain;
  const double open = keeps_base ? arriving : copies > 0 ? copies : units.layer;
  return std::max({arriving, open + units.layer, end_bytes(units, /*is_trained=*/false)});
}

// The same for stage 3. A layer's gradient goes to its owners when it is complete, and so does that of a window. Whole
// gradients of embedding and head do when the pass ends. `units` and `trained` are those of a rank's part, if ranks share
// the layers. `whole_parts`: those that a rollout gathers then. `written`: as for share_memory().
void share_weights(const UnitBytes& units, const TrainedSize& trained, const UnitBytes& trained_units,
                   double whole_parts, const RunConfig& config, bool has_lora, int num_ranks, double written,
                   const CriticBytes& critic, MemoryEstimate& memory) {
  if (config.ranks.zero_stage < 3) return;
  memory.critic -= critic.matrices * (1.0 - 1.0 / num_ranks) + critic.merged;  // its adapter, norms and head stay
  const int64_t num_parts = config.trainer.val_only ? 1 : config.actor.tensor_model_parallel_size;
  const double num_owners = static_cast<double>(num_ranks) / static_cast<double>(num_parts);
  if (num_owners == 1) return;  // no other rank has the same part
  const ModelDtype dtype = config.model.dtype;
  const double adapter = has_lora ? trained.numbers * static_cast<double>(num_bytes(dtype)) : 0.0;
  const double copies = units.layers * share_of_copies(dtype);
  // What is computed for an adapter.
  const double merged = has_lora ? std::max(0.0, memory.weights - units.all - units.whole - adapter) : 0.0;
  const double own = has_lora ? units.all : spread_bytes(units, dtype, config.actor.optim.master_weights);
  // With an adapter, what share_layers() counts is gathered next to a rank's part. A rollout needs no masters.
  const double read = !has_lora && copies > 0 ? copies + units.ends : units.all;
  memory.whole = read + merged + (has_lora && whole_parts > 0 ? memory.whole : whole_parts);
  memory.weights = own / num_owners + units.whole + adapter;
  memory.gathered = gathered_bytes(units, trained, std::max(0.0, merged - copies), config, has_lora);
  const bool is_view = has_lora && !config.ref.sync_steps;
  if (memory.reference > 0)
    memory.reference -= (is_view ? copies : spread_bytes(units, dtype, config.ref.sync_steps.has_value())) *
                        (is_view ? 1.0 : 1.0 - 1.0 / num_owners);
  if (num_parts == 1 && !has_lora && copies > 0)
    memory.saved = written * spread_bytes(units, dtype, config.actor.optim.master_weights);
  if (has_lora || config.trainer.deterministic) return;
  memory.gradients = (trained_units.all + trained_units.whole) / num_owners + trained_units.whole + trained_units.layer;
  if (units.window == 0) memory.gradients += trained_units.ends;
}

}  // namespace

// Memory for the tensors is allocated but never touched.
double weight_bytes(const ModelConfig& model, ModelDtype dtype, WeightCopies copies) {
  const auto all = static_cast<double>(model.num_parameters());
  if (dtype != ModelDtype::kBfloat16) return all * static_cast<double>(num_bytes(dtype));
  ParameterStore store = allocate_parameters(model, at::kFloat, /*requires_grad=*/false);
  allocate_rounded(store.weights);
  const auto rounded = static_cast<double>(rounded_numbers(store.weights));
  return copies == WeightCopies::kMasters ? all * 4.0 + rounded * 2.0 : (all - rounded) * 4.0 + rounded * 2.0;
}

double trained_weight_bytes(const ModelConfig& model, ModelDtype dtype, const OptimConfig& optim) {
  return weight_bytes(model, dtype, optim.master_weights ? WeightCopies::kMasters : WeightCopies::kNoMasters);
}

namespace {

// Bytes of the matrices of some parameters, by the part of the model.
UnitBytes bytes_by_unit(const ModelConfig& model, std::span<const NamedParameter> parameters, double element) {
  const WeightUnits units = weight_units(model, parameters);
  UnitBytes out;
  for (size_t part = 0; part < units.parts.size(); ++part) {
    double bytes = 0;
    for (const size_t i : units.parts[part]) bytes += static_cast<double>(parameters[i].tensor.numel()) * element;
    out.all += bytes;
    const bool is_end = part == 0 || part + 1 == units.parts.size();
    (is_end ? out.ends : out.layers) += bytes;
    double& most = is_end ? out.largest_end : out.layer;
    most = std::max(most, bytes);
  }
  for (const size_t i : units.whole) out.whole += static_cast<double>(parameters[i].tensor.numel()) * element;
  return out;
}

}  // namespace

double spread_bytes(const UnitBytes& units, ModelDtype dtype, bool has_masters) {
  const double copies = units.layers * share_of_copies(dtype);
  return units.ends + copies + (has_masters || copies == 0 ? units.layers : 0.0);
}

UnitBytes unit_bytes(const ModelConfig& model, double element) {
  const ParameterStore store = allocate_parameters(model, at::kFloat, /*requires_grad=*/false);
  return bytes_by_unit(model, store.parameters, element);
}

double window_bytes(const ModelConfig& model, const RunConfig& config, bool by_operators) {
  const auto most = static_cast<double>(vocabulary_window_bytes(config, by_operators));
  if (most == 0) return 0;
  const auto row_bytes = static_cast<double>(model.hidden_size * num_bytes(config.model.dtype));
  const double matrix = row_bytes * static_cast<double>(model.vocab_size);
  if (matrix <= most) return 0;
  return std::min(std::max(most, row_bytes * static_cast<double>(kHeadWindowRows)), matrix);
}

Result<TrainedSize> trained_size(const ModelConfig& model, const std::optional<LoraSize>& lora,
                                 const LoadedConfig& loaded, const std::string& table) {
  const ModelDtype dtype = loaded.config.model.dtype;
  const OptimConfig& optim = optim_of(loaded.config, table);
  const at::ScalarType type = dtype == ModelDtype::kFloat64 ? at::kDouble : at::kFloat;
  const ParameterStore store = allocate_parameters(model, type, /*requires_grad=*/false);
  std::vector<NamedParameter> parameters = store.parameters;
  if (lora) {
    parameters.clear();
    for (size_t i = 0; i < lora->shapes.size(); ++i)
      parameters.push_back({lora->names[i], at::empty(lora->shapes[i], type), true});
  }
  const ParameterGroups groups = TRY(group_parameters(loaded, table, parameters));
  TrainedSize out;
  out.reads_base = lora && lora->use_dora;
  for (const NamedParameter& parameter : parameters) {
    const bool is_of_tokens = parameter.name.ends_with(kEmbeddingName) || parameter.name.ends_with(kHeadName);
    const auto numbers = static_cast<double>(parameter.tensor.numel());
    if (lora && is_of_tokens) out.of_vocabulary += numbers;
    const bool is_factor = parameter.name.find(".lora_") != std::string::npos;
    if (lora && layer_of(parameter.name) && !is_factor && parameter.tensor.dim() > 1) out.of_layers += numbers;
  }
  std::erase_if(parameters, [&](const NamedParameter& p) { return is_frozen(groups, p.name); });
  const auto stepped = optimized_parameters(parameters, store.weights.embedding_VH, store.leaves.head, optim, groups);
  for (const OptimizedParameter& parameter : stepped) out.numbers += static_cast<double>(parameter.tensor.numel());
  const std::unique_ptr<const UpdateRule> rule = update_rule(optim);
  for (const OptimizedParameter& parameter : stepped) {
    const auto state = static_cast<double>(state_bytes(*rule, {parameter}));
    out.moments += state;
    out.largest_moments = std::max(out.largest_moments, state);
    out.largest_numbers = std::max(out.largest_numbers, static_cast<double>(parameter.tensor.numel()));
  }
  out.lowest_backward = lowest_backward(model.num_layers, parameters);
  if (!lora) out.units = bytes_by_unit(model, parameters, static_cast<double>(num_bytes(dtype)));
  return out;
}

MemoryEstimate estimate_memory(const ModelConfig& model, const std::optional<LoraSize>& lora,
                               const TrainedSize& trained, const RunConfig& config, bool by_operators) {
  const auto element = static_cast<double>(num_bytes(config.model.dtype));
  const auto parameters = static_cast<double>(model.num_parameters());
  MemoryEstimate bytes;
  const ModelDtype dtype = config.model.dtype;
  bytes.weights = lora ? weight_bytes(model, dtype, WeightCopies::kMasters)
                       : trained_weight_bytes(model, dtype, config.actor.optim);
  if (lora) bytes.weights += static_cast<double>(lora->num_added) * element;
  bytes.gradients = trained.numbers * element;
  bytes.moments = trained.moments;
  const bool has_reference = config.actor.use_kl_loss || config.algorithm.use_kl_in_reward;
  const double frozen = weight_bytes(model, dtype, WeightCopies::kNoMasters);
  // With an adapter it is a view of the base, unless it is refreshed. Only its rounded matrices are its own.
  if (has_reference && (!lora || config.ref.sync_steps))
    bytes.reference = config.ref.sync_steps ? weight_bytes(model, dtype, WeightCopies::kMasters) : frozen;
  else if (has_reference)
    bytes.reference = weight_bytes(model, dtype, WeightCopies::kMasters) - parameters * element;
  const int64_t row_tokens = config.data.max_prompt_length + response_length(config);
  const BatchPlan plan = plan_batches(config);
  const double tokens = tokens_on_rank(config, plan);
  const int64_t num_parts = config.actor.tensor_model_parallel_size;
  bytes.activations = activation_bytes(num_parts == 1 ? model : split_config(model, num_parts), config,
                                       trained.lowest_backward, tokens);
  if (!by_operators)
    bytes.attention = attention_bytes(model, config, row_tokens, std::ceil(tokens / static_cast<double>(row_tokens)));
  bytes.head = head_pass_bytes(model, trained, config, tokens);
  if (by_operators && dtype != ModelDtype::kFloat64)
    bytes.head =
        std::max(bytes.head, static_cast<double>(kept_logit_bytes(static_cast<int64_t>(tokens), model.vocab_size)));
  // The generator's own copy of the matrices: with ranks that sample together, of this rank's part.
  const int64_t num_samplers = config.rollout.tensor_model_parallel_size;
  const double others = numbers_of_others(model, num_samplers).layers;
  if (!by_operators && dtype != ModelDtype::kFloat64 && config.rollout.kernels != DecodeKernels::kPlain)
    bytes.rollout = config.rollout.dtype == DecodeDtype::kBfloat16
                        ? (parameters - others) * 2.0
                        : frozen - others * element_of_layers(dtype, WeightCopies::kNoMasters);
  if (config.trainer.steps_ahead() > 0) bytes.rollout += frozen;  // what samples
  const auto rows = static_cast<double>(std::min(config.rollout.max_num_seqs, plan.rows_per_step));
  const ModelConfig sampler = num_samplers == 1 ? model : split_config(model, num_samplers);
  bytes.kv_cache = std::min(
      rows * static_cast<double>(row_tokens) * 2.0 * static_cast<double>(sampler.kv_size() * model.num_layers) * 4.0,
      static_cast<double>(config.rollout.kv_cache_mib << 20));
  if (config.actor.router_replay.mode != RouterReplay::kDisabled) {
    const auto width = static_cast<double>(model.num_expert_layers() * model.moe.experts_per_token);
    bytes.experts = static_cast<double>(plan.rows_per_step * row_tokens) * width * 2.0;
  }
  return bytes;
}

double graph_bytes(const ModelConfig& model, const RunConfig& config) {
  const RolloutConfig& rollout = config.rollout;
  // Engines that record experts, those in float64, and ranks that sample together decode without graphs.
  if (rollout.tensor_model_parallel_size > 1) return 0;
  if (config.actor.router_replay.mode == RouterReplay::kR3 || config.model.dtype == ModelDtype::kFloat64) return 0;
  const bool has_edits = rollout.repetition_penalty != 1.0 || rollout.presence_penalty != 0.0 ||
                         rollout.frequency_penalty != 0.0 || !rollout.bad_words.empty() || rollout.min_new_tokens > 0 ||
                         rollout.ignore_eos;
  return decode_graph_bytes(model, {.rows = std::min(rollout.max_num_seqs, plan_batches(config).rows_per_step),
                                    .longest = config.data.max_prompt_length + response_length(config),
                                    .has_edits = has_edits,
                                    .is_rounded = config.model.dtype == ModelDtype::kBfloat16});
}

double critic_activation_bytes(const ModelConfig& critic, const TrainedSize& trained, const RunConfig& config,
                               const MicroBatchOptions& cut, int64_t rows_per_update) {
  const int64_t row_tokens = config.data.max_prompt_length + response_length(config);
  const auto num_ranks = static_cast<double>(config.critic.ulysses_sequence_parallel_size);
  const double tokens = std::ceil(pass_tokens(cut, row_tokens, rows_per_update) / num_ranks);
  return activation_bytes(critic, config, trained.lowest_backward, tokens);
}

namespace {

// Moves `bytes` of `part` into files, but those of the largest piece, which an update or a pass has in memory.
void move_to_files(double bytes, double largest, double& part, MemoryEstimate& memory) {
  const double moved = std::min(bytes, part);
  memory.files += moved;
  part -= std::max(0.0, moved - largest);
}

}  // namespace

double master_bytes(const ModelConfig& model, ModelDtype dtype) {
  if (dtype != ModelDtype::kBfloat16) return 0;
  return weight_bytes(model, dtype, WeightCopies::kMasters) - weight_bytes(model, dtype, WeightCopies::kNoMasters);
}

void offload_memory(const ModelConfig& model, const TrainedSize& trained, const RunConfig& config, bool has_lora,
                    int num_ranks, const CriticBytes& critic, MemoryEstimate& memory) {
  const ModelDtype dtype = config.model.dtype;
  const auto layers = static_cast<double>(model.num_layers);
  const int64_t num_parts = config.trainer.val_only ? 1 : config.actor.tensor_model_parallel_size;
  const ModelConfig own = num_parts == 1 ? model : split_config(model, num_parts);
  // Ranks that share weights have parts of them in files.
  const double num_owners =
      config.ranks.zero_stage < 3 ? 1.0 : static_cast<double>(num_ranks) / static_cast<double>(num_parts);
  if (config.actor.optim.offload == Offloading::kFile) {
    const bool is_split = !has_lora && update_rule(config.actor.optim)->steps_numbers();
    const double largest = trained.largest_moments / static_cast<double>(is_split ? num_parts : 1);
    move_to_files(trained.moments, largest, memory.moments, memory);
    const bool moves_masters = !has_lora && config.actor.optim.master_weights && !trained.is_on_device;
    const double all_masters = moves_masters ? master_bytes(own, dtype) : 0.0;
    const double masters = all_masters / num_owners;
    move_to_files(masters, masters / layers, memory.weights, memory);
  }
  if (config.critic.optim.offload == Offloading::kFile) {
    move_to_files(critic.moments, critic.largest_moments, memory.critic, memory);
    const double own_masters = config.ranks.zero_stage < 3 ? critic.masters : critic.masters / num_ranks;
    const double masters = trained.is_on_device ? 0.0 : own_masters;
    move_to_files(masters, masters / layers, memory.critic, memory);
  }
  if (config.ref.offload == Offloading::kFile && (!has_lora || config.ref.sync_steps)) {
    const double embedding = static_cast<double>(own.vocab_size * own.hidden_size * num_bytes(dtype)) / num_owners;
    move_to_files(memory.reference, std::max(embedding, memory.reference / layers), memory.reference, memory);
  }
}

GatheredHeads gathered_heads(const RunConfig& config, const TrainedSize& trained) {
  if (config.actor.tensor_model_parallel_size == 1 || trained.keeps_vocabulary()) return {};
  if (!config.rollout.filtered_log_probs) return {};
  return {config.model.trains_adapter() ? 1.0 : 2.0, 2.0};  // forward and backward
}

NumbersOfOthers numbers_of_others(const ModelConfig& model, int64_t num_ranks, bool keeps_vocabulary) {
  if (num_ranks == 1) return {};
  ModelConfig part = split_config(model, num_ranks);
  const int64_t all = model.num_parameters() - part.num_parameters();
  part.vocab_size = model.vocab_size;
  const int64_t layers = model.num_parameters() - part.num_parameters();
  return {static_cast<double>(layers), keeps_vocabulary ? 0.0 : static_cast<double>(all - layers)};
}

namespace {

// What actor.tensor_model_parallel_size takes off. In rollouts a rank has its part, next to whole embeddings and heads, and to
// whole layers if it samples alone.
void share_layers(const ModelConfig& model, const UnitBytes& units, const TrainedSize& trained, const RunConfig& config,
                  double written, MemoryEstimate& memory) {
  const int64_t num_ranks = config.actor.tensor_model_parallel_size;
  if (num_ranks == 1) return;
  const ModelDtype dtype = config.model.dtype;
  const bool keeps_ends = trained.keeps_vocabulary();
  const NumbersOfOthers others = numbers_of_others(model, num_ranks, keeps_ends);
  const auto element = static_cast<double>(num_bytes(dtype));
  const bool has_masters = config.actor.optim.master_weights || config.model.trains_adapter();
  const double own_element = element_of_layers(dtype, has_masters ? WeightCopies::kMasters : WeightCopies::kNoMasters);
  // Ranks that sample together do so with their parts, if the groups are the same.
  const bool samples_whole = config.rollout.tensor_model_parallel_size != num_ranks;
  if (config.model.trains_adapter()) {  // the matrices that it changes are there merged, too, and all of them rounded
    const double merged =
        std::max(0.0, memory.weights - (static_cast<double>(model.num_parameters()) + trained.numbers) * element);
    const bool has_copy = config.ref.sync_steps.has_value();  // else the reference is rounded matrices of the base
    const double rounded = has_copy ? 0.0 : memory.reference;
    memory.whole = (keeps_ends ? 0.0 : units.ends) + (samples_whole ? units.layers + merged + rounded : 0.0);
    if (config.trainer.save_merged_lora)
      memory.saved = written * ((keeps_ends ? 0.0 : units.ends) + units.layers + merged + rounded);
    memory.weights -= others.all() * element + merged * (1.0 - 1.0 / static_cast<double>(num_ranks));
    memory.weights += trained.of_layers * element;  // whole next to their parts
    if (has_copy && memory.reference > 0)
      memory.reference -= others.layers * own_element + others.ends * element;
    else
      memory.reference /= static_cast<double>(num_ranks);
    return;
  }
  const double layers = units.layers * own_element / element;
  const double ends = keeps_ends ? 0.0 : units.ends;
  memory.whole = ends + (samples_whole ? layers : 0.0);
  memory.saved = written * (ends + layers);
  const double trained_others = others.layers * trained.units.layers / units.layers +
                                others.ends * trained.units.ends / units.ends;  // the rest is frozen
  memory.weights -= others.layers * own_element + others.ends * element;
  memory.gradients -= trained_others * element;
  memory.moments -= trained_others * trained.moments / trained.numbers;
  if (!update_rule(config.actor.optim)->steps_numbers()) {
    memory.moments = std::max(memory.moments, trained.largest_moments);  // that of a whole parameter is on one rank
    memory.stepped = 4.0 * trained.largest_numbers * element;            // weights, gradient, and as much between them
  }
  const WeightCopies copies = config.ref.sync_steps ? WeightCopies::kMasters : WeightCopies::kNoMasters;
  if (memory.reference > 0)
    memory.reference -= others.layers * element_of_layers(dtype, copies) + others.ends * element;
  memory.whole += memory.gradients;  // the last update keeps their memory
}

}  // namespace

void share_memory(const ModelConfig& model, const UnitBytes& units, const TrainedSize& trained, const RunConfig& config,
                  bool has_lora, int num_ranks, double written, const CriticBytes& critic, MemoryEstimate& memory) {
  if (num_ranks == 1) return;
  if (!config.trainer.val_only) share_layers(model, units, trained, config, written, memory);
  share_states(config, num_ranks, critic, memory);
  const int64_t num_parts = config.trainer.val_only ? 1 : config.actor.tensor_model_parallel_size;
  const NumbersOfOthers others = numbers_of_others(model, num_parts, trained.keeps_vocabulary());
  const auto element = static_cast<double>(num_bytes(config.model.dtype));
  const double layers = 1.0 - others.layers * element / units.layers, ends = 1.0 - others.ends * element / units.ends;
  const bool gathers_layers = num_parts > 1 && config.rollout.tensor_model_parallel_size != num_parts;
  const double layers_read = has_lora ? units.layers : spread_bytes(units, config.model.dtype, false) - units.ends;
  const bool gathers_ends = num_parts > 1 && !trained.keeps_vocabulary();
  const double whole_parts = (gathers_ends ? units.ends : 0.0) + (gathers_layers ? layers_read : 0.0);
  share_weights(units_of_part(units, layers, ends), trained, units_of_part(trained.units, layers, ends), whole_parts,
                config, has_lora, num_ranks, written, critic, memory);
  if (config.ranks.zero_stage == 3 && units.window > 0) memory.head += window_gradient_bytes(model, config);
  // Without master weights a rank's numbers are float32 while they are stepped: those of a layer at a time with stage 3.
  const bool is_widened =
      config.model.dtype == ModelDtype::kBfloat16 && !config.actor.optim.master_weights && !has_lora;
  if (is_widened && config.ranks.zero_stage > 0) {
    const double stepped = config.ranks.zero_stage == 3 ? trained.units.layer : trained.units.layers;
    const double num_owners = static_cast<double>(num_ranks) / static_cast<double>(num_parts);
    memory.stepped = std::max(memory.stepped, stepped * layers / num_owners);
  }
  if (num_parts > 1 && memory.saved > 0) memory.saved += memory.gradients;
  const int64_t num_samplers = config.rollout.tensor_model_parallel_size;
  const bool has_part = config.actor.tensor_model_parallel_size == num_samplers && !config.trainer.val_only;
  if (num_samplers > 1 && !has_part) {  // a copy of its part, until the generator has its own
    const double numbers = static_cast<double>(model.num_parameters()) - numbers_of_others(model, num_samplers).layers;
    memory.whole += (numbers - units.ends / element) * element_of_layers(config.model.dtype, WeightCopies::kMasters);
  }
}

}  // namespace mortise
