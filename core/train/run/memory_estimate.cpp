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
#include "generate/engine.h"
#include "learn/optim/weight_shards.h"
#include "model/head/full_kl.h"
#include "model/head/head_windows.h"
#include "model/head/kept_logits.h"
#include "model/layers/attention_products.h"
#include "model/layers/kernel_experts.h"
#include "model/layers/recompute.h"
#include "model/weights/names.h"
#include "model/weights/rounded_matrices.h"
#include "model/weights/tensor_split.h"
#include "train/run/memory_parts.h"
#include "train/run/offloading.h"
#include "train/run/reference.h"
#include "train/run/run_options.h"

namespace mortise {

int64_t recorded_length(const RunConfig& config) {
  const int64_t text = config.data.max_prompt_length + config.data.max_response_length;
  return std::max(text, config.sft.max_length.value_or(text));
}

namespace {

NumberSizes number_sizes(ModelDtype dtype, const TrainedSize& trained) {
  NumberSizes out(num_bytes(dtype), num_product_bytes(dtype));
  out.by_operators = trained.is_on_device;
  out.by_kernels = trained.has_kernels;
  out.has_adapter = trained.is_adapter;
  return out;
}

// Bytes that the layers keep for backward in a pass over so many tokens.
// The layers below `lowest` are not part of backward.
double activation_bytes(const ModelConfig& model, const RunConfig& config, const TrainedSize& trained, double tokens) {
  const NumberSizes sizes = number_sizes(config.model.dtype, trained);
  const LayerMemory layer = layer_memory(model, sizes);
  const auto kept = tokens * static_cast<double>(layer.kept);
  const int64_t below = trained.lowest_backward - 1, layers = model.num_layers - below;
  const std::optional<int64_t> budget = learner_options(config, trained.is_on_device).pass.activation_bytes;
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

}  // namespace

double element_of_layers(ModelDtype dtype, WeightCopies copies) {
  const auto element = static_cast<double>(num_bytes(dtype));
  if (dtype != ModelDtype::kBfloat16) return element;
  return copies == WeightCopies::kMasters ? element + 2.0 : 2.0;
}

double tokens_on_rank(const RunConfig& config, const BatchPlan& plan, bool by_operators) {
  const MicroBatchOptions cut = micro_batch_options(config, by_operators);
  const int64_t row_tokens = config.data.max_prompt_length + response_length(config);
  double tokens = pass_tokens(cut, row_tokens, plan.rows_per_update);
  if (config.sft_mix.is_on())
    tokens = std::max(tokens, pass_tokens(cut, recorded_length(config), config.sft_mix.train_batch_size));
  return std::ceil(tokens / static_cast<double>(config.actor.ulysses_sequence_parallel_size));
}

double head_pass_bytes(const ModelConfig& model, const TrainedSize& trained, const RunConfig& config, double tokens,
                       int64_t columns) {
  const int64_t element = num_bytes(config.model.dtype), num_parts = config.actor.tensor_model_parallel_size;
  const auto rows = static_cast<int64_t>(tokens);
  const bool is_split = num_parts > 1 && !trained.keeps_vocabulary();
  const int64_t own_vocab = is_split ? split_config(model, num_parts).vocab_size : model.vocab_size;
  const auto loss = static_cast<double>(head_bytes(rows, model.hidden_size, own_vocab, element));
  const double gathered =
      gathered_heads(config, trained).at_once * static_cast<double>(model.vocab_size * model.hidden_size * element);
  if (!has_full_kl(config) && !has_teacher_loss(config)) return std::max(loss, gathered);
  const double chunk = gathered + static_cast<double>(full_kl_bytes(rows, model.hidden_size, own_vocab, element,
                                                                    std::min(columns, own_vocab)));
  const NumberSizes sizes = number_sizes(config.model.dtype, trained);
  const double one_layer = tokens * static_cast<double>(layer_memory(model, sizes).kept);
  return std::max(loss, std::max(chunk, one_layer));
}

double window_gradient_bytes(const ModelConfig& model, double tokens, const RunConfig& config) {
  return std::min(tokens, static_cast<double>(by_windows::kTokensOfGradient)) *
         static_cast<double>(model.hidden_size * num_bytes(config.model.dtype));
}

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
    const bool is_end = part == 0 || part + 1 == units.parts.size();
    for (const size_t i : units.parts[part]) {
      const double of_matrix = static_cast<double>(parameters[i].tensor.numel()) * element;
      bytes += of_matrix;
      if (!is_end) out.matrix = std::max(out.matrix, of_matrix);
    }
    out.all += bytes;
    (is_end ? out.ends : out.layers) += bytes;
    double& most = is_end ? out.largest_end : out.layer;
    most = std::max(most, bytes);
  }
  for (const size_t i : units.whole) out.whole += static_cast<double>(parameters[i].tensor.numel()) * element;
  return out;
}

}  // namespace

double read_part_bytes(const UnitBytes& units, const MergeSize& merge, double element) {
  const double next_to_it = merge.matrices * sizeof(double) / element;
  return std::max(units.layer + units.matrix * next_to_it,
                  units.largest_end * (1.0 + (merge.has_head ? next_to_it : 0.0)));
}

UnitBytes unit_bytes(const ModelConfig& model, double element) {
  const ParameterStore store = allocate_parameters(model, at::kFloat, /*requires_grad=*/false);
  return bytes_by_unit(model, store.parameters, element);
}

namespace {

VocabularyWindow window_of_rows(const ModelConfig& model, int64_t num_rows, bool is_on_device,
                                const RunConfig& config) {
  const int64_t most = vocabulary_window_bytes(config, is_on_device);
  const int64_t row_bytes = model.hidden_size * num_bytes(config.model.dtype);
  if (most == 0 || row_bytes * num_rows <= most) return {};
  const int64_t rows = std::min(rows_of_window(most, row_bytes), num_rows);
  return {rows, static_cast<double>(rows * row_bytes)};
}

}  // namespace

VocabularyWindow vocabulary_window(const ModelConfig& model, const TrainedSize& trained, const RunConfig& config) {
  const bool is_split = !config.trainer.val_only && !trained.keeps_vocabulary();
  const int64_t num_parts = is_split ? config.actor.tensor_model_parallel_size : 1;
  return window_of_rows(model, (model.vocab_size + num_parts - 1) / num_parts, trained.is_on_device, config);
}

VocabularyWindow critic_window(const ModelConfig& model, const TrainedSize& trained, const RunConfig& config) {
  return window_of_rows(model, model.vocab_size, trained.is_on_device, config);
}

namespace {

// Also by the name that an adapter gives what it trains as a whole.
bool is_of_vocabulary(const std::string& parameter) {
  return parameter.ends_with(kEmbeddingName) || parameter.ends_with(kHeadName);
}

}  // namespace

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
  out.is_adapter = lora.has_value();
  out.reads_base = lora && lora->use_dora;
  for (const NamedParameter& parameter : parameters) {
    const auto numbers = static_cast<double>(parameter.tensor.numel());
    if (lora && is_of_vocabulary(parameter.name)) out.of_vocabulary += numbers;
    const bool is_factor = parameter.name.find(".lora_") != std::string::npos;
    if (lora && layer_of(parameter.name) && !is_factor && parameter.tensor.dim() > 1) out.of_layers += numbers;
  }
  if (lora) {
    const bool continues = table == "critic.optim" ? loaded.config.critic.model.lora_adapter_path.has_value()
                                                   : loaded.config.model.lora_adapter_path.has_value();
    out.is_from_base = lora->changes_base || (lora->use_dora && !continues);
  }
  std::erase_if(parameters, [&](const NamedParameter& p) { return is_frozen(groups, p.name); });
  const auto element = static_cast<double>(num_bytes(dtype));
  const auto stepped = optimized_parameters(parameters, store.weights.embedding_VH, store.leaves.head, optim, groups);
  for (const OptimizedParameter& parameter : stepped) out.numbers += static_cast<double>(parameter.tensor.numel());
  const std::unique_ptr<const UpdateRule> rule = update_rule(optim);
  for (const OptimizedParameter& parameter : stepped) {
    if (lora && is_of_vocabulary(parameter.name)) {
      const double bytes = static_cast<double>(parameter.tensor.numel()) * element;
      out.units.ends += bytes;
      out.units.largest_end = std::max(out.units.largest_end, bytes);
    }
    const auto state = static_cast<double>(state_bytes(*rule, {parameter}));
    out.moments += state;
    out.largest_moments = std::max(out.largest_moments, state);
    const auto numbers = static_cast<double>(parameter.tensor.numel());
    out.largest_numbers = std::max(out.largest_numbers, numbers);
    if (layer_of(parameter.name)) out.largest_of_layers = std::max(out.largest_of_layers, numbers);
  }
  out.lowest_backward = lowest_backward(model.num_layers, parameters);
  if (!lora) out.units = bytes_by_unit(model, parameters, element);
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
  const bool has_reference = has_kl_to_reference(config);
  const double frozen = weight_bytes(model, dtype, WeightCopies::kNoMasters);
  // With an adapter it is a view of the base, unless it is refreshed or another model. Only its rounded matrices are its own.
  if (has_reference && (!lora || config.ref.has_own_weights()))
    bytes.reference = config.ref.sync_steps ? weight_bytes(model, dtype, WeightCopies::kMasters) : frozen;
  else if (has_reference)
    bytes.reference = weight_bytes(model, dtype, WeightCopies::kMasters) - parameters * element;
  const int64_t row_tokens = config.data.max_prompt_length + response_length(config);
  const BatchPlan plan = plan_batches(config);
  const double tokens = tokens_on_rank(config, plan, by_operators);
  const int64_t num_parts = config.actor.tensor_model_parallel_size;
  bytes.activations =
      activation_bytes(num_parts == 1 ? model : split_config(model, num_parts), config, trained, tokens);
  if (!by_operators)
    bytes.attention = attention_bytes(model, config, row_tokens, std::ceil(tokens / static_cast<double>(row_tokens)));
  bytes.head = head_pass_bytes(model, trained, config, tokens, model.vocab_size);
  // Then whole heads are passed in windows, too (learner_options()).
  if (config.trainer.deterministic && vocabulary_window(model, trained, config).rows > 0)
    bytes.head += window_gradient_bytes(model, tokens, config);
  if (by_operators && dtype != ModelDtype::kFloat64)
    bytes.head =
        std::max(bytes.head, static_cast<double>(kept_logit_bytes(static_cast<int64_t>(tokens), model.vocab_size)));
  const bool rounds_head = by_operators && dtype == ModelDtype::kBfloat16;
  if (rounds_head)
    bytes.head +=
        static_cast<double>(rounded_head_bytes(static_cast<int64_t>(tokens), model.hidden_size, model.vocab_size));
  const auto copy_of_head = static_cast<double>(2 * model.vocab_size * model.hidden_size);
  if (rounds_head && (has_full_kl(config) || has_teacher_loss(config)))
    bytes.head += copy_of_head;  // the other model's
  // The generator's own copy of the matrices: with ranks that sample together, of this rank's part.
  const int64_t num_samplers = config.rollout.tensor_model_parallel_size;
  const double others = numbers_of_others(model, num_samplers).layers;
  if (!by_operators && dtype != ModelDtype::kFloat64 && config.rollout.kernels != DecodeKernels::kPlain)
    bytes.rollout = config.rollout.dtype == DecodeDtype::kBfloat16
                        ? (parameters - others) * 2.0
                        : frozen - others * element_of_layers(dtype, WeightCopies::kNoMasters);
  if (rounds_head) bytes.rollout += copy_of_head;                 // the sampler's
  if (config.trainer.steps_ahead() > 0) bytes.rollout += frozen;  // what samples
  const auto rows = static_cast<double>(std::min(config.rollout.max_num_seqs, plan.rows_per_step));
  const ModelConfig sampler = num_samplers == 1 ? model : split_config(model, num_samplers);
  const double number = by_operators ? static_cast<double>(num_product_bytes(dtype)) : 4.0;
  bytes.kv_cache = std::min(
      rows * static_cast<double>(row_tokens) * 2.0 * static_cast<double>(sampler.kv_size() * model.num_layers) * number,
      static_cast<double>(config.rollout.kv_cache_mib << 20));
  if (config.actor.router_replay.mode != RouterReplay::kDisabled) {
    const auto width = static_cast<double>(model.num_expert_layers() * model.moe.experts_per_token);
    bytes.experts = static_cast<double>(plan.rows_per_step * row_tokens) * width * 2.0;
  }
  return bytes;
}

double bytes_of_rows(const RunConfig& config) {
  // Measured. A token has an id, log-probs, its part of the text, and a number of 8 bytes in most columns of the step's
  // table; a row has its names, reward and metrics.
  constexpr double kOfToken = 80, kOfRow = 600;
  const auto rows = static_cast<double>(plan_batches(config).rows_per_step * (1 + config.trainer.steps_ahead()));
  return rows * (kOfRow + kOfToken * static_cast<double>(response_length(config)));
}

double graph_bytes(const ModelConfig& model, const RunConfig& config) {
  const RolloutConfig& rollout = config.rollout;
  // Engines that record experts, those in float64, and ranks that sample together decode without graphs.
  if (rollout.tensor_model_parallel_size > 1 || rollout.enforce_eager) return 0;
  if (config.actor.router_replay.mode == RouterReplay::kR3 || config.model.dtype == ModelDtype::kFloat64) return 0;
  const bool has_edits = rollout.repetition_penalty != 1.0 || rollout.presence_penalty != 0.0 ||
                         rollout.frequency_penalty != 0.0 || !rollout.bad_words.empty() || rollout.min_new_tokens > 0 ||
                         rollout.ignore_eos || rollout.structured_outputs_regex;
  return decode_graph_bytes(model, {.rows = std::min(rollout.max_num_seqs, plan_batches(config).rows_per_step),
                                    .longest = config.data.max_prompt_length + response_length(config),
                                    .has_edits = has_edits,
                                    .is_rounded = config.model.dtype == ModelDtype::kBfloat16});
}

double expert_pass_bytes(const ModelConfig& model, const RunConfig& config) {
  if (model.num_expert_layers() == 0 || config.model.dtype == ModelDtype::kFloat64) return 0;
  const bool is_rounded = config.model.dtype == ModelDtype::kBfloat16;
  const int64_t full = config.rollout.max_num_batched_tokens.value_or(default_batch_tokens(/*by_operators=*/true));
  const int64_t tokens = std::min(full, most_tokens_of_kernels(model, is_rounded));
  return static_cast<double>(tokens * kernel_mixture_bytes(model, is_rounded ? 2 : 4));
}

double critic_activation_bytes(const ModelConfig& critic, const TrainedSize& trained, const RunConfig& config,
                               const MicroBatchOptions& cut, int64_t rows_per_update) {
  const int64_t row_tokens = config.data.max_prompt_length + response_length(config);
  const auto num_ranks = static_cast<double>(config.critic.ulysses_sequence_parallel_size);
  const double tokens = std::ceil(pass_tokens(cut, row_tokens, rows_per_update) / num_ranks);
  return activation_bytes(critic, config, trained, tokens);
}

namespace {

// Moves `bytes` of `part` into files, but those of the largest piece, which a pass has in memory.
void move_to_files(double bytes, double largest, double& part, MemoryEstimate& memory) {
  const double moved = std::min(bytes, part);
  memory.files += moved;
  part -= std::max(0.0, moved - largest);
}

// The same of what only a step reads. The result: what it has of it at a time.
double move_stepped(double bytes, double largest, double& part, MemoryEstimate& memory) {
  move_to_files(bytes, 0.0, part, memory);
  return std::min(bytes, largest);
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
  const bool keeps_masters = trained.is_on_device && masters_stay_on_device(config, num_ranks);
  // A rank has its range of a parameter's state, if it can be cut.
  const auto piece = [&](const OptimConfig& optim, double largest, double num_sharers) {
    const bool is_cut = config.ranks.zero_stage > 0 && !update_rule(optim)->needs_whole_parameters();
    return is_cut ? largest / num_sharers : largest;
  };
  const bool critic_sharded = config.ranks.zero_stage > 0;
  const double critic_moments = critic.moments / (critic_sharded ? num_ranks : 1);
  const double critic_masters =
      keeps_masters ? 0.0 : critic.masters / (config.ranks.zero_stage < 3 ? 1.0 : static_cast<double>(num_ranks));
  const bool moves_masters = !has_lora && config.actor.optim.master_weights && !keeps_masters;
  const double masters = (moves_masters ? master_bytes(own, dtype) : 0.0) / num_owners;
  double of_critic = 0;
  if (config.critic.optim.offload == StateOffloading::kFile) {
    of_critic = move_stepped(critic_moments, piece(config.critic.optim, critic.largest_moments, num_ranks),
                             memory.critic, memory);
    of_critic += move_stepped(critic_masters, critic_masters / layers, memory.critic, memory);
  }
  if (config.actor.optim.offload == StateOffloading::kFile) {
    const bool is_split = !has_lora && update_rule(config.actor.optim)->steps_numbers();
    const double largest =
        piece(config.actor.optim, trained.largest_moments / static_cast<double>(is_split ? num_parts : 1),
              static_cast<double>(num_ranks) / static_cast<double>(num_parts));
    memory.stepped += move_stepped(trained.moments, largest, memory.moments, memory);
    memory.stepped += move_stepped(masters, masters / layers, memory.weights, memory);
  }
  memory.stepped = std::max(memory.stepped, of_critic);  // one steps after the other
  if (trained.is_on_device && config.actor.optim.offload == StateOffloading::kWhileSampling) {
    memory.resting = memory.moments;
    memory.resting_masters = masters;
  }
  if (trained.is_on_device && config.critic.optim.offload == StateOffloading::kWhileSampling) {
    memory.resting_critic = critic_moments;
    memory.resting_critic_masters = critic_masters;
  }
  if (config.ref.offload == Offloading::kFile && (!has_lora || config.ref.has_own_weights())) {
    const double embedding = static_cast<double>(own.vocab_size * own.hidden_size * num_bytes(dtype)) / num_owners;
    move_to_files(memory.reference, std::max(embedding, memory.reference / layers), memory.reference, memory);
  }
}

}  // namespace mortise
