// What ranks share of the memory that one process needs: ranks.zero_stage, actor.tensor_model_parallel_size. And what
// deterministic sums of gradients need more.
#include <algorithm>

#include "config/check.h"
#include "learn/optim/unit_size.h"
#include "learn/optim/weight_shards.h"
#include "model/weights/tensor_split.h"
#include "train/run/gradient_memory.h"
#include "train/run/memory_estimate.h"
#include "train/run/memory_parts.h"
#include "train/run/rank_estimate.h"
#include "train/run/run_options.h"

namespace mortise {

namespace {

// How many of a layer's bytes its bfloat16 copies take.
double share_of_copies(ModelDtype dtype) {
  return dtype == ModelDtype::kBfloat16 ? 2.0 / static_cast<double>(num_bytes(dtype)) : 0.0;
}

ShardCut cut_of(const OptimConfig& optim, bool splits_layers) {
  return splits_layers || update_rule(optim)->needs_whole_parameters() ? ShardCut::kTensors : ShardCut::kBlocks;
}

// Without ZeRO, a rank has the critic's whole gradient, and so much more in a fixed order.
void add_critic_tree(const RunConfig& config, int num_ranks, const CriticBytes& critic, MemoryEstimate& memory) {
  if (!config.trainer.deterministic || critic.gradients == 0) return;
  memory.critic +=
      gradient_in_tree(critic.gradients, passes_of_critic(config, critic, num_ranks).of_rank, 1.0, critic.activations) -
      critic.gradients;
}

// What ranks.zero_stage takes off the memory of a rank. `ends`: the rank's share of embedding and head. Gradients of policy
// and critic are never there together, as they leave.
void share_states(const RunConfig& config, const TrainedSize& trained, double ends, const Passes& passes, bool has_lora,
                  int num_ranks, const CriticBytes& critic, MemoryEstimate& memory) {
  const int64_t num_parts = config.trainer.val_only ? 1 : config.actor.tensor_model_parallel_size;
  const double with_same_part = static_cast<double>(num_ranks) / static_cast<double>(num_parts);
  const bool is_shared = config.ranks.zero_stage > 0;
  const int64_t sequence_size = config.actor.ulysses_sequence_parallel_size;
  const FixedOrder order = fixed_order(config, num_parts * sequence_size, passes, num_ranks);
  const Passes of_critic_updates = passes_of_critic(config, critic, num_ranks);
  const FixedOrder of_critic =
      fixed_order(config, config.critic.ulysses_sequence_parallel_size, of_critic_updates, num_ranks);
  if (order.keeps_leaves)
    memory.gradients =
        gradient_in_tree(memory.gradients, passes.of_rank, is_shared ? with_same_part : 1.0, memory.activations);
  if (!is_shared) return add_critic_tree(config, num_ranks, critic, memory);
  memory.moments /= with_same_part;
  memory.critic -= critic.moments * (1.0 - 1.0 / num_ranks) + critic.gradients;
  if (of_critic.keeps_leaves) {
    memory.gradients = std::max(
        memory.gradients, gradient_in_tree(critic.gradients, of_critic_updates.of_rank, num_ranks, critic.activations));
  }
  if (config.ranks.zero_stage == 3) return;
  const auto element = static_cast<double>(num_bytes(config.model.dtype));
  const bool each_pass = config.ranks.zero_stage == 2;
  if (with_same_part > 1.0 && !order.keeps_leaves) {
    const bool in_pass = !has_lora || sequence_size == 1;
    const Owners owners{with_same_part, in_pass ? each_pass || passes.of_rank == 1 : each_pass && passes.of_rank > 1,
                        cut_of(config.actor.optim, num_parts > 1 && !has_lora), in_pass};
    memory.gradients = order.subtrees * memory.gradients +
                       gradient_in_buckets(trained, memory.gradients, end_of_gradient(trained, has_lora) * ends,
                                           memory.activations, element, owners);
  }
  if (critic.gradients == 0 || of_critic.keeps_leaves) return;
  const Owners owners{static_cast<double>(num_ranks), each_pass, cut_of(config.critic.optim, false),
                      !critic.has_lora || config.critic.ulysses_sequence_parallel_size == 1};
  memory.gradients = std::max(
      memory.gradients, of_critic.subtrees * critic.gradients +
                            gradient_in_buckets(critic.trained, critic.gradients, critic.trained.units.largest_end,
                                                critic.activations, element, owners));
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

// The most of embedding or head that a pass has: all of it, or a window. A trained window has a gradient, and parts of it are on
// their way, unless whole gradients are kept. A window of the reference comes next to it if both are compared, unless it is the
// base of the adapter.
double end_bytes(const UnitBytes& units, bool is_trained, const RunConfig& config) {
  const double window = units.window.bytes;
  if (window == 0) return units.largest_end;
  const bool has_pair = has_full_kl(config) && (is_trained || config.ref.has_own_weights());
  const double rows = has_pair ? 2.0 * window : window;
  if (!is_trained || config.trainer.deterministic) return rows;
  return rows + window + std::min(window, static_cast<double>(Shards::kRoundBytes));
}

// Bytes of embedding and head that an adapter trains as a whole.
double whole_ends(const TrainedSize& trained, const RunConfig& config) {
  return trained.of_vocabulary * static_cast<double>(num_bytes(config.model.dtype));
}

// What is there in a pass: the open layer and the next one on its way, or the embedding or the head. With an adapter,
// merged matrices and what a start left of the base (`computed`, of all layers) are computed from the base that arrives.
double gathered_bytes(const UnitBytes& units, const TrainedSize& trained, double computed, const RunConfig& config,
                      bool has_lora) {
  const double copies = units.layer * share_of_copies(config.model.dtype);
  if (!has_lora)
    return std::max(2.0 * (copies > 0 ? copies : units.layer), end_bytes(units, /*is_trained=*/true, config));
  const double ends_read = units.ends - whole_ends(trained, config);
  const double end = ends_read > 0 ? end_bytes(units, /*is_trained=*/false, config) : 0.0;
  const double arriving = units.layer * (1.0 + computed / units.layers) + copies;
  const bool keeps_base = trained.reads_base || config.model.layers == LayerPasses::kPlain;
  const double open = keeps_base ? arriving : copies > 0 ? copies : units.layer;
  return std::max({arriving, open + units.layer, end});
}

// What is computed for an adapter, of all layers. `weights`: all that there is of the model.
double merged_bytes(double weights, const UnitBytes& units, double adapter) {
  return std::max(0.0, weights - units.all - units.whole - adapter);
}

// The critic's part of this: all ranks share it.
void share_critic(const RunConfig& config, int num_ranks, const CriticBytes& critic, MemoryEstimate& memory) {
  memory.critic -= critic.matrices * (1.0 - 1.0 / num_ranks) + critic.merged;  // its adapter, norms and head stay
  if (critic.weights == 0) return;
  const double copies = critic.units.layers * share_of_copies(config.model.dtype);
  const double computed = critic.has_lora ? std::max(0.0, critic.merged - copies) : 0.0;
  memory.gathered =
      std::max(memory.gathered, gathered_bytes(critic.units, critic.trained, computed, config, critic.has_lora));
  const FixedOrder order = fixed_order(config, config.critic.ulysses_sequence_parallel_size,
                                       passes_of_critic(config, critic, num_ranks), num_ranks);
  if (order.keeps_leaves) return;
  const bool by_windows = critic.units.window.rows > 0 && !config.trainer.deterministic;
  memory.gradients = std::max(memory.gradients,
                              order.subtrees * critic.gradients +
                                  gradient_with_spread_weights(critic.trained.units, critic.gradients, critic.has_lora,
                                                               by_windows, num_ranks, critic.activations));
}

// The same for stage 3. `units` and `trained` are those of a rank's part, if ranks share the layers. `whole_parts`: those
// that a rollout gathers then.
void share_weights(const UnitBytes& units, const TrainedSize& trained, const UnitBytes& trained_units,
                   double whole_parts, const RunConfig& config, const Passes& passes, bool has_lora, int num_ranks,
                   const CriticBytes& critic, MemoryEstimate& memory) {
  if (config.ranks.zero_stage < 3) return;
  const int64_t num_parts = config.trainer.val_only ? 1 : config.actor.tensor_model_parallel_size;
  const double num_owners = static_cast<double>(num_ranks) / static_cast<double>(num_parts);
  // No other rank has the same part.
  if (num_owners == 1) return share_critic(config, num_ranks, critic, memory);
  const ModelDtype dtype = config.model.dtype;
  const double adapter = has_lora ? trained.numbers * static_cast<double>(num_bytes(dtype)) : 0.0;
  const double copies = units.layers * share_of_copies(dtype);
  const double merged = has_lora ? merged_bytes(memory.weights, units, adapter) : 0.0;
  const double own = has_lora ? units.all : spread_bytes(units, dtype, config.actor.optim.master_weights);
  // With an adapter, what share_layers() counts is gathered next to a rank's part. A rollout needs no masters.
  const double read = !has_lora && copies > 0 ? copies + units.ends : units.all;
  const double unread = has_lora ? whole_ends(trained, config) : 0.0;
  memory.whole = read - unread + merged + (has_lora && whole_parts > 0 ? memory.whole : whole_parts);
  memory.weights = own / num_owners + units.whole + adapter;
  memory.gathered = gathered_bytes(units, trained, std::max(0.0, merged - copies), config, has_lora);
  const bool is_view = has_lora && !config.ref.has_own_weights();
  // What an adapter trains as a whole in its place is not read of the base. It stays, unless the reference reads it.
  const bool has_view = is_view && (config.actor.use_kl_loss || config.algorithm.use_kl_in_reward);
  if (!has_view) memory.weights += unread;
  if (memory.reference > 0)
    memory.reference -= (is_view ? copies : spread_bytes(units, dtype, config.ref.sync_steps.has_value())) *
                        (is_view ? 1.0 : 1.0 - 1.0 / num_owners);
  const FixedOrder order =
      fixed_order(config, num_parts * config.actor.ulysses_sequence_parallel_size, passes, num_ranks);
  if (!order.keeps_leaves) {
    const bool by_windows = units.window.rows > 0 && !config.trainer.deterministic;
    memory.gradients =
        order.subtrees * memory.gradients + gradient_with_spread_weights(trained_units, memory.gradients, has_lora,
                                                                         by_windows, num_owners, memory.activations);
  }
  share_critic(config, num_ranks, critic, memory);
}

}  // namespace

double spread_bytes(const UnitBytes& units, ModelDtype dtype, bool has_masters) {
  const double copies = units.layers * share_of_copies(dtype);
  return units.ends + copies + (has_masters || copies == 0 ? units.layers : 0.0);
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
                  MemoryEstimate& memory) {
  const int64_t num_ranks = config.actor.tensor_model_parallel_size;
  if (num_ranks == 1) return;
  const ModelDtype dtype = config.model.dtype;
  const bool keeps_ends = trained.keeps_vocabulary();
  const NumbersOfOthers others = numbers_of_others(model, num_ranks, keeps_ends);
  const auto element = static_cast<double>(num_bytes(dtype));
  const bool has_masters = config.actor.optim.master_weights || config.model.trains_adapter();
  const double own_element = element_of_layers(dtype, has_masters ? WeightCopies::kMasters : WeightCopies::kNoMasters);
  const WeightCopies copies = config.ref.sync_steps ? WeightCopies::kMasters : WeightCopies::kNoMasters;
  // Ranks that sample together do so with their parts, if the groups are the same.
  const bool samples_whole = config.rollout.tensor_model_parallel_size != num_ranks;
  if (config.model.trains_adapter()) {  // the matrices that it changes are there merged, too, and all of them rounded
    const double merged =
        std::max(0.0, memory.weights - (static_cast<double>(model.num_parameters()) + trained.numbers) * element);
    const bool has_copy = config.ref.has_own_weights();  // else the reference is rounded matrices of the base
    const double rounded = has_copy ? 0.0 : memory.reference;
    memory.whole = (keeps_ends ? 0.0 : units.ends) + (samples_whole ? units.layers + merged + rounded : 0.0);
    if (config.trainer.save_merged_lora)
      memory.saved =
          std::max(keeps_ends ? 0.0 : units.largest_end, units.layer * (1.0 + (merged + rounded) / units.layers));
    memory.weights -= others.all() * element + merged * (1.0 - 1.0 / static_cast<double>(num_ranks));
    memory.weights += trained.of_layers * element;  // whole next to their parts
    if (has_copy && memory.reference > 0)
      memory.reference -= others.layers * element_of_layers(dtype, copies) + others.ends * element;
    else
      memory.reference /= static_cast<double>(num_ranks);
    return;
  }
  const double layers = units.layers * own_element / element;
  const double ends = keeps_ends ? 0.0 : units.ends;
  memory.whole = ends + (samples_whole ? layers : 0.0);
  memory.saved = std::max(keeps_ends ? 0.0 : units.largest_end, units.layer * own_element / element);
  const double trained_others = others.layers * trained.units.layers / units.layers +
                                others.ends * trained.units.ends / units.ends;  // the rest is frozen
  memory.weights -= others.layers * own_element + others.ends * element;
  memory.gradients -= trained_others * element;
  memory.moments -= trained_others * trained.moments / trained.numbers;
  if (!update_rule(config.actor.optim)->steps_numbers()) {
    memory.moments = std::max(memory.moments, trained.largest_moments);  // that of a whole parameter is on one rank
    memory.stepped = 4.0 * trained.largest_numbers * element;            // weights, gradient, and as much between them
  }
  if (memory.reference > 0)
    memory.reference -= others.layers * element_of_layers(dtype, copies) + others.ends * element;
  memory.whole += memory.gradients;  // the last update keeps their memory
}

}  // namespace

namespace {

// While a rank reads a part of the model next to what it keeps, and what an adapter's start computes from a layer. `whole`:
// bytes of all weights.
double started_bytes(const UnitBytes& units, const TrainedSize& trained, const RunConfig& config, int num_ranks,
                     double whole) {
  const int64_t num_parts = config.trainer.val_only ? 1 : config.actor.tensor_model_parallel_size;
  const bool spreads = config.ranks.zero_stage >= 3 && num_ranks > num_parts;
  if (config.trainer.val_only || (!spreads && num_parts == 1)) return 0;
  const ModelDtype dtype = config.model.dtype;
  const auto element = static_cast<double>(num_bytes(dtype));
  double part = read_part_bytes(units, trained.merge, element);
  if (spreads && num_parts > 1) part += part / static_cast<double>(num_parts);
  if (!trained.is_from_base) return part;
  const double adapter = trained.numbers * element;
  const double computed = merged_bytes(whole, units, adapter) - units.layers * share_of_copies(dtype);
  return std::max(part, units.layer * (1.0 + std::max(0.0, computed) / units.layers));
}

}  // namespace

void share_memory(const ModelConfig& model, const UnitBytes& units, const TrainedSize& trained, const RunConfig& config,
                  bool has_lora, int num_ranks, const CriticBytes& critic, MemoryEstimate& memory) {
  if (num_ranks == 1) {
    const int64_t all = estimate_ranks(config, model, plan_batches(config), units, trained, 1).most_passes;
    if (config.trainer.deterministic)
      memory.gradients = gradient_in_tree(memory.gradients, all, 1.0, memory.activations);
    add_critic_tree(config, 1, critic, memory);
    return;
  }
  memory.started = started_bytes(units, trained, config, num_ranks, memory.weights);
  if (config.ranks.zero_stage >= 3 && !config.trainer.val_only)
    memory.started = std::max(memory.started, critic.started);
  if (!config.trainer.val_only) share_layers(model, units, trained, config, memory);
  const int64_t num_parts = config.trainer.val_only ? 1 : config.actor.tensor_model_parallel_size;
  const NumbersOfOthers others = numbers_of_others(model, num_parts, trained.keeps_vocabulary());
  const auto element = static_cast<double>(num_bytes(config.model.dtype));
  const double layers = 1.0 - others.layers * element / units.layers, ends = 1.0 - others.ends * element / units.ends;
  const RankEstimate shares = estimate_ranks(config, model, plan_batches(config), units, trained, num_ranks);
  const Passes passes{shares.most_passes, (shares.most_passes + shares.num_groups() - 1) / shares.num_groups()};
  share_states(config, trained, ends, passes, has_lora, num_ranks, critic, memory);
  const bool gathers_layers = num_parts > 1 && config.rollout.tensor_model_parallel_size != num_parts;
  const double layers_read = has_lora ? units.layers : spread_bytes(units, config.model.dtype, false) - units.ends;
  const bool gathers_ends = num_parts > 1 && !trained.keeps_vocabulary();
  const double whole_parts = (gathers_ends ? units.ends : 0.0) + (gathers_layers ? layers_read : 0.0);
  share_weights(units_of_part(units, layers, ends), trained, units_of_part(trained.units, layers, ends), whole_parts,
                config, passes, has_lora, num_ranks, critic, memory);
  if (config.ranks.zero_stage == 3 && num_ranks > num_parts && units.window.rows > 0) {
    const double tokens = tokens_on_rank(config, plan_batches(config), trained.is_on_device);
    memory.head = head_pass_bytes(model, trained, config, tokens, units.window.rows) +
                  window_gradient_bytes(model, tokens, config);
    // Filters put a rank's rows of the head together before they gather those of other ranks.
    if (gathered_heads(config, trained).at_once > 0) memory.head += units.largest_end * ends;
  }
  // Without master weights a rank's numbers are float32 while they are stepped: those of a layer at a time with stage 3,
  // else those of a bucket.
  const bool is_widened =
      config.model.dtype == ModelDtype::kBfloat16 && !config.actor.optim.master_weights && !has_lora;
  if (is_widened && config.ranks.zero_stage > 0) {
    const double num_owners = static_cast<double>(num_ranks) / static_cast<double>(num_parts);
    const auto unit = static_cast<double>(unit_size(cut_of(config.actor.optim, num_parts > 1),
                                                    static_cast<int64_t>(num_owners), static_cast<int64_t>(element)));
    const double bucket = std::max(unit, trained.largest_of_layers * element);
    const double stepped = config.ranks.zero_stage == 3 ? trained.units.layer : std::min(bucket, trained.units.layers);
    memory.stepped = std::max(memory.stepped, stepped * layers / num_owners);
  }
  if (num_parts > 1 && memory.saved > 0) {
    if (config.ranks.zero_stage == 3 && num_ranks > num_parts) {  // its own part of it is put together first
      memory.saved *= 1.0 + 1.0 / static_cast<double>(num_parts);
      if (trained.keeps_vocabulary()) memory.saved = std::max(memory.saved, units.largest_end);
    }
    memory.saved += memory.gradients;
  }
  const int64_t num_samplers = config.rollout.tensor_model_parallel_size;
  const bool has_part = config.actor.tensor_model_parallel_size == num_samplers && !config.trainer.val_only;
  if (num_samplers > 1 && !has_part) {  // a copy of its part, until the generator has its own
    const double numbers = static_cast<double>(model.num_parameters()) - numbers_of_others(model, num_samplers).layers;
    memory.whole += (numbers - units.ends / element) * element_of_layers(config.model.dtype, WeightCopies::kMasters);
  }
}

}  // namespace mortise
