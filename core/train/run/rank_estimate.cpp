// Counts the passes and the bytes of ranks.
#include "train/run/rank_estimate.h"

#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"
#include "learn/update/gradient_tree.h"
#include "learn/update/owner_trees.h"
#include "model/weights/tensor_split.h"
#include "train/loop/critic.h"
#include "train/run/reference.h"
#include "train/run/run_options.h"

namespace mortise {

namespace {

// Ranks that share the tokens of a pass of the policy. A run that only validates has no such passes.
int64_t sequence_size(const RunConfig& config) {
  return config.trainer.val_only ? 1 : config.actor.ulysses_sequence_parallel_size;
}

// Ranks that share the layers. A run that only validates has whole ones.
int64_t tensor_size(const RunConfig& config) {
  return config.trainer.val_only ? 1 : config.actor.tensor_model_parallel_size;
}

int64_t rounded_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

// Micro-batches of so many groups that have `num_rows` each, of the longest length. As plan_micro_batches: rows of a group that
// fit into one have their prompt once.
int64_t passes_of_groups(const RunConfig& config, int64_t token_budget, int64_t num_groups, int64_t num_rows) {
  const int64_t prompt = config.data.max_prompt_length, response = response_length(config);
  const int64_t most_rows = std::max<int64_t>(1, (token_budget - prompt) / response);  // one without others
  const int64_t full = num_groups * (num_rows / most_rows), rest = num_rows % most_rows;
  if (rest == 0) return full;
  return full + rounded_up(num_groups, std::max<int64_t>(1, token_budget / (prompt + rest * response)));
}

// Micro-batches of so many rows.
int64_t count_passes(const RunConfig& config, const MicroBatchOptions& cut, int64_t num_rows) {
  if (cut.rows > 0) return rounded_up(num_rows, cut.rows);
  const int64_t whole = num_rows / config.rollout.n, rest = num_rows % config.rollout.n;
  return passes_of_groups(config, cut.token_budget, whole, config.rollout.n) +
         (rest > 0 ? passes_of_groups(config, cut.token_budget, 1, rest) : 0);
}

// What a rank sends while `num_ranks` = N ranks add an update's gradient of P bytes, in multiples of P (N-1)/N. The
// micro-batches, `num_passes`, are those of `num_groups` groups of `group_size` ranks. A deterministic sum is a tree, and
// each of its nodes goes to all ranks or to the owners of its parts. The result is the average over the ranks.
double sums_sent(const RunConfig& config, int64_t num_passes, int64_t num_groups, int64_t group_size,
                 int64_t num_ranks) {
  const int64_t stage = config.ranks.zero_stage;
  const bool deterministic = config.trainer.deterministic;
  if (deterministic && !owners_add_leaves(deterministic, stage >= 2, group_size)) {
    const auto count = static_cast<size_t>(num_passes);
    const std::vector<int> owners =
        deal_in_ranges(std::vector<int64_t>(count, 1), static_cast<int>(num_groups));  // equal passes
    const auto nodes = static_cast<double>(node_places(owners, std::vector<LeafReport>(count)).size());
    return stage == 0 ? nodes : nodes / static_cast<double>(num_ranks);
  }
  if (stage == 0) return 2.0;  // all_reduce
  return stage >= 2 ? static_cast<double>(rounded_up(num_passes, num_groups)) : 1.0;
}

// What a rank sends in an update so that each of `size` ranks has some heads of all tokens, which `num_ranks` have.
double sequence_bytes(const RunConfig& config, const ModelConfig& model, int64_t rows_per_update, int64_t size,
                      int64_t num_ranks) {
  const int64_t rows_of_all = rows_per_update * (config.data.max_prompt_length + response_length(config));
  const int64_t numbers = 2 * model.num_heads + 2 * std::max(model.num_kv_heads, size);  // there and back
  const double passes = config.model.enable_gradient_checkpointing ? 3.0 : 2.0;  // forward, forward again, backward
  return static_cast<double>(rows_of_all) / static_cast<double>(num_ranks) *
         static_cast<double>(numbers * model.head_dim) *
         static_cast<double>(model.num_layers * num_bytes(config.model.dtype)) * passes *
         static_cast<double>(size - 1) / static_cast<double>(size);
}

// The same so that the ranks of a group have one gradient of each micro-batch, which deterministic sums need.
double sequence_sums(const RunConfig& config, double gradient_bytes, int64_t passes_of_rank, int64_t size) {
  if (!config.trainer.deterministic) return 0.0;
  return 2.0 * gradient_bytes * static_cast<double>(passes_of_rank * (size - 1)) / static_cast<double>(size);
}

// What a rank sends in an update to add up the layers of its group: two sums forward, and two backward. For a split
// embedding and head: a sum of all tokens forward, one of response tokens backward, and four numbers of each of these.
double tensor_bytes(const RunConfig& config, const ModelConfig& model, const BatchPlan& plan,
                    const TrainedSize& trained, const RankEstimate& ranks) {
  const int64_t rows_of_all = plan.rows_per_update * (config.data.max_prompt_length + response_length(config));
  const auto size = static_cast<double>(ranks.tensor_size);
  const auto others = static_cast<double>(ranks.num_ranks) / size;             // each has tokens of its own
  const double sums = config.model.enable_gradient_checkpointing ? 6.0 : 4.0;  // forward again in backward
  const double ends = trained.keeps_vocabulary() ? 0.0 : 1.0;
  const double responses = ends * static_cast<double>(plan.rows_per_update * response_length(config));
  const double vectors =
      static_cast<double>(rows_of_all) * (sums * static_cast<double>(model.num_layers) + ends) + responses;
  constexpr double kBytesOfStats = 32.0;
  return (vectors * static_cast<double>(model.hidden_size * num_bytes(config.model.dtype)) * 2.0 / size +
          responses * kBytesOfStats) *
         (size - 1.0) / others;
}

// What a rank sends in a step while it samples together with others: its terms of two sums per layer, to each of them.
// A shared expert has a sum of its own.
double rollout_bytes(const RunConfig& config, const ModelConfig& model, const BatchPlan& plan,
                     const RankEstimate& ranks) {
  const auto size = static_cast<double>(ranks.rollout_size), groups = static_cast<double>(ranks.num_ranks) / size;
  const auto prompts = static_cast<double>(plan.prompts_per_step * config.data.max_prompt_length);
  const auto tokens = prompts + static_cast<double>(plan.rows_per_step * response_length(config));
  const double element = config.model.dtype == ModelDtype::kFloat64 ? 8.0 : 4.0;
  const int64_t sums = 2 * model.num_layers + (model.moe.shared_size > 0 ? model.num_expert_layers() : 0);
  return tokens / groups * static_cast<double>(model.hidden_size * sums) * element * (size - 1.0);
}

// Weights that a rank sends in a step so that each of its group can sample. With an adapter, whole layers are the base,
// and at most as much merged.
double split_weight_bytes(const UnitBytes& units, const TrainedSize& trained, const RankEstimate& ranks,
                          bool has_adapter) {
  const auto size = static_cast<double>(ranks.tensor_size);
  const double layers = ranks.rollout_size == ranks.tensor_size ? 0.0 : units.layers * (has_adapter ? 2.0 : 1.0);
  return (layers + (trained.keeps_vocabulary() ? 0.0 : units.ends)) / size * (size - 1.0);
}

// How often a rank receives a head in an update's pass beyond the walk for log-probs, if passes read it in windows: for
// gradients, for products with kept tokens, and for comparisons with the heads of a reference, which travels too unless it
// is the base of the adapter, or of a teacher (two_heads.h). A frozen head that split layers gather for kept tokens is
// walked over once.
double walks_after_forward(const RunConfig& config) {
  const bool is_gathered = config.actor.tensor_model_parallel_size > 1 && config.model.trains_adapter();
  double walks = config.rollout.filtered_log_probs && !is_gathered ? 2.0 : 1.0;
  const bool has_pair = !config.model.trains_adapter() || config.ref.has_own_weights();
  if (has_full_kl(config))
    walks += has_pair ? 3.0 : 1.0;  // two walks, less one that the reference's forward pass counts
  if (!has_teacher_loss(config)) return walks;
  return walks + (config.teacher.divergence_beta == 1.0 ? 2.0 : config.teacher.divergence_beta == 0.0 ? 3.0 : 4.0);
}

// Stage 3 of ZeRO: weights that a rank sends so that others can compute. For split layers, those are the ranks with the
// same part.
void add_spread_weights(const RunConfig& config, const ModelConfig& model, const BatchPlan& plan,
                        const UnitBytes& units, const TrainedSize& trained, int64_t passes_of_rank, RankEstimate& out) {
  const auto rounds = static_cast<double>(passes_of_rank);
  const NumbersOfOthers others = numbers_of_others(model, out.tensor_size, trained.keeps_vocabulary());
  const auto element = static_cast<double>(num_bytes(config.model.dtype));
  const double same = static_cast<double>(out.num_ranks) / static_cast<double>(out.tensor_size);
  const double share = (same - 1.0) / same, ends = units.ends - others.ends * element;
  const bool as_copies = config.model.dtype == ModelDtype::kBfloat16 && !config.model.trains_adapter();
  const double layers = (units.layers - others.layers * element) * (as_copies ? 0.5 : 1.0), all = ends + layers;
  const bool has_reference = has_kl_to_reference(config);
  // Forward needs all parts, and one matrix twice if it is embedding and head. Backward needs the layers. A step also
  // samples, and has a pass for the old log-probs and one of the reference.
  const double read = (model.tie_word_embeddings ? 2.0 : 1.0) * ends + layers;
  const double head = (read - layers) / 2.0;
  const double again = units.window.rows > 0 ? head * walks_after_forward(config) : 0.0;
  const double of_reference = has_full_kl(config) ? read : 0.0;
  out.weight_bytes = share * rounds * (read + of_reference + layers + again);
  out.step_weight_bytes += share * (all + read * rounds * plan.mean_updates_per_step() * (has_reference ? 2.0 : 1.0));
}

}  // namespace

int64_t critic_passes(const RunConfig& config, const BatchPlan& plan, bool by_operators) {
  return count_passes(config, critic_pass_options(config, by_operators), critic_rows_per_update(config, plan));
}

RankEstimate estimate_ranks(const RunConfig& config, const ModelConfig& model, const BatchPlan& plan,
                            const UnitBytes& units, const TrainedSize& trained, int num_ranks) {
  const auto element = static_cast<double>(num_bytes(config.model.dtype));
  const double trained_bytes = trained.numbers * element;
  RankEstimate out;
  out.num_ranks = num_ranks;
  out.rollout_size = config.rollout.tensor_model_parallel_size;
  const int64_t num_samplers = num_ranks / out.rollout_size;
  out.fewest_prompts = plan.prompts_per_step / num_samplers;
  out.most_prompts = (plan.prompts_per_step + num_samplers - 1) / num_samplers;
  out.rollout_bytes = rollout_bytes(config, model, plan, out);
  const MicroBatchOptions cut = micro_batch_options(config, trained.is_on_device);
  out.most_passes = count_passes(config, cut, plan.rows_per_update);
  if (config.sft_mix.is_on()) {
    const int64_t most = cut.rows > 0 ? cut.rows : std::max<int64_t>(1, cut.token_budget / recorded_length(config));
    out.most_passes += rounded_up(config.sft_mix.train_batch_size, most);
  }
  out.sequence_size = sequence_size(config);
  out.tensor_size = tensor_size(config);
  out.sequence_bytes = sequence_bytes(config, out.tensor_size == 1 ? model : split_config(model, out.tensor_size),
                                      plan.rows_per_update, out.sequence_size, num_ranks / out.tensor_size);
  out.tensor_bytes = tensor_bytes(config, model, plan, trained, out);
  const double share = static_cast<double>(num_ranks - 1) / num_ranks;
  const int64_t passes_of_rank = rounded_up(out.most_passes, out.num_groups());
  const bool is_whole = out.tensor_size == 1 || config.model.trains_adapter();
  const double own_bytes =
      is_whole ? trained_bytes
               : trained_bytes * (1.0 - numbers_of_others(model, out.tensor_size, trained.keeps_vocabulary()).all() /
                                            static_cast<double>(model.num_parameters()));
  out.sequence_bytes += sequence_sums(config, own_bytes, passes_of_rank, out.sequence_size);
  // Those with the same part of the layers add gradients, and send new weights.
  const double same = static_cast<double>(num_ranks) / static_cast<double>(out.tensor_size);
  const double of_same = own_bytes * (same - 1.0) / same;
  out.gradient_bytes = of_same * sums_sent(config, out.most_passes, out.num_groups(), num_ranks / out.num_groups(),
                                           num_ranks / out.tensor_size);
  if (config.ranks.zero_stage > 0) out.weight_bytes = of_same;
  if (out.tensor_size > 1) {
    const double of_others = static_cast<double>(out.tensor_size - 1) / static_cast<double>(out.tensor_size);
    if (config.model.trains_adapter())  // each has a term of it
      out.tensor_bytes += 2.0 * (trained_bytes - trained.of_vocabulary * element) * of_others;
    else if (!update_rule(config.actor.optim)->steps_numbers())  // its part of gradients and weights, and new weights
      out.tensor_bytes += 3.0 * own_bytes * of_others / (config.ranks.zero_stage > 0 ? same : 1.0);
    const double head = static_cast<double>(model.vocab_size * model.hidden_size) * element;
    out.tensor_bytes += gathered_heads(config, trained).sent * head * of_others * static_cast<double>(passes_of_rank);
    out.step_weight_bytes = split_weight_bytes(units, trained, out, config.model.trains_adapter());
  }
  if (config.ranks.zero_stage == 3) add_spread_weights(config, model, plan, units, trained, passes_of_rank, out);
  // Each token: 8 bytes for its id, about as many of text, and 4 each for the sampler's, the old and the reference's
  // log-prob. Every other rank gets them.
  constexpr double kBytesPerToken = 28.0;
  out.row_bytes = static_cast<double>(plan.rows_per_step * response_length(config)) * kBytesPerToken * share;
  return out;
}

// Every rank has whole layers of it, unless stage 3 spreads them.
double critic_bytes_sent(const RunConfig& config, const BatchPlan& plan, const CriticSize& critic, int num_ranks) {
  const auto element = static_cast<double>(num_bytes(config.model.dtype));
  const int64_t size = config.critic.ulysses_sequence_parallel_size, num_groups = num_ranks / size;
  const bool by_operators = critic.trained.is_on_device;
  const MicroBatchOptions cut = critic_pass_options(config, by_operators);
  const int64_t num_rows = critic_rows_per_update(config, plan);
  const int64_t num_passes = critic_passes(config, plan, by_operators);
  const int64_t passes_of_rank = rounded_up(num_passes, num_groups);
  const double share = static_cast<double>(num_ranks - 1) / num_ranks, trained = critic.trained.numbers * element;
  const bool sends_new_weights = config.ranks.zero_stage == 1 || config.ranks.zero_stage == 2;  // 3: passes read them
  double update =
      trained * share * (sums_sent(config, num_passes, num_groups, size, num_ranks) + (sends_new_weights ? 1.0 : 0.0));
  update += sequence_bytes(config, critic.model, num_rows, size, num_ranks);
  update += sequence_sums(config, trained, passes_of_rank, size);
  constexpr double kBytesPerValue = 4.0;  // each token, for every other rank
  double step = static_cast<double>(plan.rows_per_step * response_length(config)) * kBytesPerValue * share;
  if (config.ranks.zero_stage == 3) {  // forward reads all parts, backward the layers; passes for values read once
    const bool as_copies = config.model.dtype == ModelDtype::kBfloat16 && !critic.lora;
    const double layers = critic.units.layers * (as_copies ? 0.5 : 1.0), read = critic.units.ends + layers;
    update += share * static_cast<double>(passes_of_rank) * (read + layers);
    step += share * read * static_cast<double>(rounded_up(count_passes(config, cut, plan.rows_per_step), num_groups));
  }
  return step + update * static_cast<double>(critic_updates_per_step(config, plan));
}

namespace {

std::string mesh_text(const RankEstimate& ranks) {
  std::string shape = fmt::format("dp {}", ranks.num_groups()), shared;
  const auto add = [&](const char* name, int64_t num_ranks, const char* what, double bytes) {
    if (num_ranks == 1) return;
    shape += fmt::format(" x {} {}", name, num_ranks);
    shared += fmt::format("; {} ranks share {}, and send each other about {} in an update", num_ranks, what,
                          format_bytes(static_cast<uint64_t>(bytes)));
  };
  add("sp", ranks.sequence_size, "the tokens of each pass", ranks.sequence_bytes);
  add("tp", ranks.tensor_size, "the layers in updates", ranks.tensor_bytes);
  return fmt::format("# mesh: {}{}\n", shape, shared);
}

}  // namespace

std::string ranks_text(const RankEstimate& ranks, const BatchPlan& plan) {
  if (ranks.num_ranks == 1) return "";
  const auto size = [](double bytes) { return format_bytes(static_cast<uint64_t>(bytes)); };
  std::string prompts = std::to_string(ranks.fewest_prompts);
  if (ranks.most_prompts != ranks.fewest_prompts) prompts += " or " + std::to_string(ranks.most_prompts);
  const std::string sampled =
      ranks.samples
          ? fmt::format("each {} {} {} of a step; ", ranks.rollout_size == 1 ? "samples and scores" : "group samples",
                        prompts, ranks.most_prompts == 1 ? "prompt" : "prompts")
          : std::string();
  std::string out = fmt::format("# ranks: {} processes; {}they share about {} of an update\n", ranks.num_ranks, sampled,
                                ranks.most_passes == 1 ? "1 pass" : fmt::format("{} passes", ranks.most_passes));
  const int64_t num_groups = ranks.num_groups();
  out += mesh_text(ranks);
  if (ranks.rollout_size > 1 && ranks.samples) {
    out += fmt::format(
        "# rollouts: groups of {} ranks sample the same rows, and a rank sends about {} in a step for that\n",
        ranks.rollout_size, size(ranks.rollout_bytes));
  }
  if (ranks.most_passes < num_groups)
    out += "# ranks: some have no pass in an update; lower actor.ppo_max_token_len_per_gpu\n";
  const std::string weights =
      ranks.weight_bytes > 0 ? fmt::format(" and {} of weights", size(ranks.weight_bytes)) : std::string();
  const std::string of_critic =
      ranks.critic_bytes > 0 ? fmt::format(", of which {} for the critic", size(ranks.critic_bytes)) : std::string();
  const std::string whole = size(ranks.bytes_of_step(plan));
  return out + fmt::format("# wire: each rank sends {} of gradients{} in an update, {}{}\n", size(ranks.gradient_bytes),
                           weights, ranks.samples ? fmt::format("and about {} in a step", whole) : whole + " in all",
                           of_critic);
}

}  // namespace mortise
