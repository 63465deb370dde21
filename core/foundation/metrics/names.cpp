// The table of metric names (names.h). Groups follow the order in which a step makes them.
#include "foundation/metrics/names.h"

#include <array>
#include <unordered_map>

namespace mortise {
namespace {

using enum Reduction;

constexpr auto kTable = std::to_array<MetricInfo>({
    // --- position in the run ---
    {"training/global_step", "", "steps done, this one included", kLast},
    {"training/epoch", "", "epoch of the data, from 0", kLast},
    {"training/num_updates", "", "optimizer steps done", kLast},
    {"training/learnt_tokens", "tokens", "tokens of the update that carry loss (sft)", kLast},
    {"num_tokens", "tokens", "prompt and response tokens of the whole run so far (TRL)", kLast},
    {"step_time", "s", "wall time of the step (TRL)", kSum},
    {"epoch", "", "epoch with its fraction (TRL)", kLast},

    // --- what was sampled ---
    {"prompt_length/mean", "tokens", "prompt lengths", kMean},
    {"prompt_length/max", "tokens", "longest prompt", kMax},
    {"prompt_length/min", "tokens", "shortest prompt", kMin},
    {"prompt_length/clip_ratio", "fraction", "prompts as long as data.max_prompt_length", kMean},
    {"response_length/mean", "tokens", "response lengths", kMean},
    {"response_length/max", "tokens", "longest response", kMax},
    {"response_length/min", "tokens", "shortest response", kMin},
    {"response_length/clip_ratio", "fraction", "responses cut at the longest length, without an end token", kMean},
    {"response_length_non_aborted/mean", "tokens", "lengths of non-empty responses", kMean},
    {"response_length_non_aborted/max", "tokens", "longest non-empty response", kMax},
    {"response_length_non_aborted/min", "tokens", "shortest non-empty response", kMin},
    {"response_length_non_aborted/clip_ratio", "fraction", "non-empty responses that were cut", kMean},
    {"response/aborted_ratio", "fraction", "empty responses", kMean},
    {"completions/mean_length", "tokens", "response lengths (TRL)", kMean},
    {"completions/min_length", "tokens", "shortest response (TRL)", kMin},
    {"completions/max_length", "tokens", "longest response (TRL)", kMax},
    {"completions/clipped_ratio", "fraction", "responses without an end token (TRL)", kMean},
    {"completions/mean_terminated_length", "tokens", "lengths of responses with an end token (TRL)", kMean},
    {"completions/min_terminated_length", "tokens", "shortest response with an end token; 0 if none (TRL)", kMin},
    {"completions/max_terminated_length", "tokens", "longest response with an end token; 0 if none (TRL)", kMax},
    {"num_turns/mean", "",
     "turns of a conversation: messages of the prompt without the system message, plus the completion, or the turns and "
     "answers of it",
     kMean},
    {"num_turns/max", "", "most turns of a conversation", kMax},
    {"num_turns/min", "", "fewest turns of a conversation", kMin},
    {"tool_call_counts/mean", "", "tool calls of a row that were answered, with rollout.multi_turn", kMean},
    {"tool_call_counts/max", "", "most tool calls of a row", kMax},
    {"tool_call_counts/min", "", "fewest tool calls of a row", kMin},
    {"tools/call_frequency", "", "tool calls per row (TRL)", kMean},
    {"tools/failure_frequency", "fraction", "tool calls that were answered with an error (TRL)", kMean},
    {"environment/failed_ratio", "fraction", "rows without reward and loss because their environment failed", kMean},
    {"global_seqlen/mean", "tokens", "prompt and response tokens of the step, per rank", kMean},
    {"global_seqlen/max", "tokens", "most tokens of a rank before balancing", kMax},
    {"global_seqlen/min", "tokens", "fewest tokens of a rank before balancing", kMin},
    {"global_seqlen/minmax_diff", "tokens", "most minus fewest tokens of a rank before balancing", kLast},
    {"global_seqlen/balanced_max", "tokens", "most tokens of a rank after balancing", kMax},
    {"global_seqlen/balanced_min", "tokens", "fewest tokens of a rank after balancing", kMin},

    // --- how it was scored ---
    {"critic/score/mean", "", "score of a non-empty sequence, before any KL penalty", kMean},
    {"critic/score/max", "", "highest sequence score", kMax},
    {"critic/score/min", "", "lowest sequence score", kMin},
    {"critic/rewards/mean", "", "sequence score after the KL penalty in the reward", kMean},
    {"critic/rewards/max", "", "highest sequence reward", kMax},
    {"critic/rewards/min", "", "lowest sequence reward", kMin},
    {"critic/advantages/mean", "", "advantages over response tokens", kMean},
    {"critic/advantages/max", "", "highest advantage", kMax},
    {"critic/advantages/min", "", "lowest advantage", kMin},
    {"critic/returns/mean", "", "returns over response tokens", kMean},
    {"critic/returns/max", "", "highest return", kMax},
    {"critic/returns/min", "", "lowest return", kMin},
    {"critic/values/mean", "", "value predictions over response tokens", kMean},
    {"critic/values/max", "", "highest value prediction", kMax},
    {"critic/values/min", "", "lowest value prediction", kMin},
    {"critic/vf_explained_var", "", "1 - var(returns - values) / (var(returns) + 1e-5)", kMean},
    {"critic/vf_loss", "", "value loss, mean over updates", kMean},
    {"critic/vf_clipfrac", "fraction", "tokens whose value loss is clipped", kMean},
    {"critic/vpred_mean", "", "value predictions during the update", kMean},
    {"critic/grad_norm", "", "gradient norm of the critic before clipping", kMean},
    {"critic/lr", "", "learning rate of the critic", kLast},
    {"reward", "", "mean of the weighted sum of all rewards (TRL)", kMean},
    {"reward_std", "", "standard deviation of that sum over the batch (TRL)", kMean},
    {"frac_reward_nan", "fraction", "completions without a reward: none applies, or all that do failed", kMean},
    {"frac_reward_zero_std", "fraction", "groups whose rewards are all the same (TRL)", kMean},
    {"train-core/{any}", "",
     "SOURCE/reward/mean: mean score of the rows of a data_source, if the step has 2 to 64 of them", kMean},
    {"rewards/{name}/mean", "", "mean of one reward function (TRL)", kMean},
    {"rewards/{name}/std", "", "standard deviation of one reward function over the batch (TRL)", kMean},
    {"rewards/{name}/not_applicable", "fraction", "rows where this reward does not apply", kMean},
    {"rewards/{name}/failed", "", "rows that this reward could not score", kSum},

    // --- what was learnt ---
    {"loss", "", "the whole objective (TRL)", kMean},
    {"grad_norm", "", "gradient norm before clipping (TRL)", kMean},
    {"learning_rate", "", "learning rate of the last update (TRL)", kLast},
    {"lr", "", "learning rate of this update", kLast},
    {"entropy", "nats", "entropy of the policy over response tokens (TRL)", kMean},
    {"kl", "nats", "KL estimate to the reference over response tokens (TRL)", kMean},
    {"clip_ratio_low", "fraction",
     "this update: tokens (rows for sequence ratios) with ratio < 1 - low and advantage < 0", kMean},
    {"clip_ratio_high", "fraction", "this update: tokens (rows) with ratio > 1 + high and advantage > 0", kMean},
    {"clip_ratio_region", "fraction", "this update: either of the two", kMean},
    {"clip_ratio/low_mean", "fraction", "tokens with ratio < 1 - low and advantage < 0 (TRL)", kMean},
    {"clip_ratio/low_min", "fraction", "lowest such share of a row (TRL)", kMin},
    {"clip_ratio/high_mean", "fraction", "tokens with ratio > 1 + high and advantage > 0 (TRL)", kMean},
    {"clip_ratio/high_max", "fraction", "highest such share of a row (TRL)", kMax},
    {"clip_ratio/region_mean", "fraction", "tokens clipped on either side (TRL)", kMean},
    {"cispo_clip_ratio", "fraction", "tokens with ratio above the clip's upper edge and advantage > 0 (TRL)", kMean},
    {"vespo_phi_mean", "", "this update: mean weight that the loss gives a row", kMean},
    {"policy_loss", "", "policy term of the objective, if there is an entropy bonus (TRL)", kMean},
    {"entropy_coef", "", "coefficient of the entropy bonus after the update, if there is one (TRL)", kLast},
    {"actor/loss", "", "the whole objective, mean over updates", kMean},
    {"actor/pg_loss", "", "policy term, mean over updates", kMean},
    {"actor/pg_clipfrac", "fraction", "tokens that got the clipped loss", kMean},
    {"actor/pg_clipfrac_lower", "fraction", "tokens that got the dual clip", kMean},
    {"actor/ppo_kl", "nats", "mean of old_log_prob - log_prob", kMean},
    {"actor/kl_loss", "nats", "KL term before its coefficient", kMean},
    {"actor/kl_coef", "", "coefficient of the KL term", kLast},
    {"actor/teacher_divergence", "nats", "divergence of teacher.loss_coef before its coefficient, over tokens", kMean},
    {"actor/teacher_kl", "nats", "mean of old_log_prob - the teacher's log-prob (teacher.advantage_coef)", kMean},
    {"actor/sft_mix_loss", "nats", "loss of the supervised rows of sft_mix, before mu", kMean},
    {"actor/sft_mix_mu", "", "mu: the share of that loss in the update's loss", kMean},
    {"actor/sft_mix_tokens", "tokens", "supervised tokens that an update learns", kMean},
    {"actor/sft_mix_prob", "", "mean probability of a supervised token under the policy", kMean},
    {"actor/router_aux_loss", "", "load-balancing loss of the experts before its coefficient", kMean},
    {"actor/router_z_loss", "", "z-loss of the routers before its coefficient", kMean},
    {"actor/expert_load/min", "", "tokens of the expert with fewest, 1 being an even spread over its layer", kMin},
    {"actor/expert_load/max", "", "tokens of the expert with most, 1 being an even spread over its layer", kMax},
    {"actor/entropy_coeff", "", "coefficient of the entropy bonus that the update applied", kMean},
    {"actor/entropy", "nats", "entropy of the policy that sampled, over response tokens", kMean},
    {"actor/entropy_loss", "nats", "entropy term before its coefficient", kMean},
    {"actor/grad_norm", "", "gradient norm before clipping, mean over updates", kMean},
    {"actor/lr", "", "learning rate of the last update", kLast},
    {"actor/skipped_updates", "", "updates skipped because a gradient was not finite", kSum},
    {"actor/reward_kl_penalty", "nats", "KL penalty subtracted from the reward", kMean},
    {"actor/reward_kl_penalty_coeff", "", "its coefficient", kLast},

    // --- how far sampling and training disagree (probabilities, not log-probs) ---
    {"training/rollout_probs_diff_valid", "", "1 if the next four are known", kLast},
    {"training/rollout_probs_diff_max", "", "largest |p_rollout - p_actor| of a token", kMax},
    {"training/rollout_probs_diff_mean", "", "mean |p_rollout - p_actor|", kMean},
    {"training/rollout_probs_diff_std", "", "standard deviation of it", kMean},
    {"training/rollout_actor_probs_pearson_corr", "", "correlation of the two", kMean},
    {"sampling/sampling_logp_difference/mean", "nats", "mean |log p_rollout - log p_actor| (TRL)", kMean},
    {"sampling/sampling_logp_difference/max", "nats", "its largest value (TRL)", kMax},
    {"sampling/importance_sampling_ratio/mean", "", "rollout importance weights (TRL)", kMean},
    {"sampling/importance_sampling_ratio/min", "", "smallest of them (TRL)", kMin},
    {"sampling/importance_sampling_ratio/max", "", "largest of them (TRL)", kMax},
    {"training/kept_tokens/mean", "", "tokens that the sampler's filters keep at a position", kMean},
    {"training/kept_tokens/missing_frac", "fraction",
     "sampled tokens that the filters would drop by the trainer's numbers; such tokens are kept", kMean},
    {"train/num_gen_batches", "", "generation batches that the step drew (algorithm.filter_groups)", kSum},
    {"training/filter_groups/dropped", "", "groups dropped because their metric does not differ between rows", kSum},
    {"training/filter_groups/carried", "", "groups kept for the next step", kLast},
    {"training/carried_rows", "", "rows that wait for the first update of the next step (actor.carry_rows)", kLast},
    {"training/over_sampling/carried", "", "groups that continue in the next step (rollout.over_sampling)", kLast},
    {"training/over_sampling/carried_tokens", "tokens", "tokens that their completions have", kLast},
    {"training/replay_buffer/replaced", "", "groups of the step that groups of earlier steps replaced", kSum},
    {"training/replay_buffer/age", "steps", "age of the groups that replaced them", kMean},
    {"training/replay_buffer/size", "", "groups in the buffer after the step", kLast},
    {"training/off_policy/trajectory_staleness", "updates", "age of the weights that sampled a row", kMean},
    {"training/off_policy/trajectory_staleness_worst", "updates", "age of the oldest of them", kMax},
    {"training/off_policy/trajectory_spans", "",
     "versions of the weights that sampled a row, with trainer.mode = async", kMean},
    {"training/off_policy/token_staleness", "updates", "age of the weights that sampled a token, with the same mode",
     kMean},
    {"rollout_corr/{name}_max", "", "rollout correction: largest value", kMax},
    {"rollout_corr/{name}_min", "", "rollout correction: smallest value", kMin},
    {"rollout_corr/{any}", "", "rollout correction, under verl's names", kMean},
    {"variance_proxy/{name}", "", "proxies of the gradient's variance, for estimators that need sum_pi_squared (verl)",
     kMean},

    // --- where the time went ---
    {"timing_s/step", "s", "the whole step", kSum},
    {"timing_s/gen", "s", "sampling", kSum},
    {"timing_s/gen_max", "s", "sampling of greedy completions, for estimators that compare with them", kMax},
    {"timing_s/reward", "s", "waiting for rewards", kSum},
    {"timing_s/old_log_prob", "s", "log-probs of the policy that sampled", kSum},
    {"timing_s/ref", "s", "log-probs of the reference", kSum},
    {"timing_s/teacher", "s", "log-probs of the teacher", kSum},
    {"timing_s/kept_tokens", "s", "what the sampler's filters left (rollout.filtered_log_probs)", kSum},
    {"timing_s/values", "s", "values of the critic", kSum},
    {"timing_s/adv", "s", "advantages", kSum},
    {"timing_s/update_critic", "s", "updates of the critic", kSum},
    {"timing_s/update_actor", "s", "updates of the actor", kSum},
    {"timing_s/offload_optimizer", "s", "optimizers' states going to the host's memory (optim.offload)", kSum},
    {"timing_s/update_weights", "s", "handing new weights to the rollout backend", kSum},
    {"timing_s/testing", "s", "validation", kSum},
    {"timing_s/save_checkpoint", "s", "saving", kSum},
    {"timing_s/dump_rollout_generations", "s", "writing completions", kSum},
    {"timing_s/{any}", "s", "another part of the step", kSum},
    {"timing_per_token_ms/gen", "ms", "sampling, per response token", kMean},
    {"timing_per_token_ms/{name}", "ms", "that part of the step, per prompt and response token", kMean},
    {"perf/total_num_tokens", "tokens", "prompt and response tokens of the step", kSum},
    {"perf/time_per_step", "s", "wall time of the step", kSum},
    {"perf/throughput", "tokens/s", "total_num_tokens / time_per_step / ranks", kMean},
    {"perf/mfu/actor", "fraction", "part of the machine's measured peak that the policy's updates reach", kMean},
    {"perf/mfu/actor_infer", "fraction", "the same for the old log-probs' pass", kMean},
    {"perf/mfu/critic", "fraction", "the same for the critic's updates", kMean},
    {"perf/cpu_memory_used_gb", "GiB", "resident memory of the process; with several ranks, of the one that has most",
     kMax},
    {"perf/failed_saves", "", "checkpoints that could not be saved since the last good one; 3 stop the run", kLast},

    // --- validation: SOURCE is the row's data_source ---
    {"val-core/{any}", "",
     "SOURCE/reward/, and SOURCE/acc/ if a reward gives a number of that name: mean@N, pass@K (expected best of K of the N "
     "completions, exact), vote@N (of the most frequent answer), best@N/ and maj@N/ with mean and std (verl's bootstrap)",
     kMean},
    {"val-aux/{any}", "",
     "the same for all other numbers that rewards give, and for each reward if there are several; std@N, stderr@N (standard error over the prompts), and best@K/, worst@K/, maj@K/ for other K; "
     "num_turns",
     kMean},
    {"eval_{any}", "", "validation: reward, rewards/, completions/ and frac_reward_zero_std as above (TRL)", kMean},
});

// Position behind `{...}`, or npos for no placeholder at `at`.
size_t placeholder_end(std::string_view pattern, size_t at) {
  if (pattern[at] != '{') return std::string_view::npos;
  const size_t end = pattern.find('}', at);
  return end == std::string_view::npos ? end : end + 1;
}

}  // namespace

std::span<const MetricInfo> metric_table() { return kTable; }

bool metric_pattern_matches(std::string_view pattern, std::string_view name) {
  for (size_t i = 0; i < pattern.size(); ++i) {
    const size_t end = placeholder_end(pattern, i);
    if (end == std::string_view::npos) {
      if (name.empty() || name.front() != pattern[i]) return false;
      name.remove_prefix(1);
      continue;
    }
    if (pattern.substr(i, end - i) == "{any}") return !name.empty();
    // Up to the next '/', less what the pattern has behind the placeholder there ("{name}_max").
    const std::string_view part = name.substr(0, name.find('/'));
    const std::string_view behind = pattern.substr(end);
    const std::string_view tail = behind.substr(0, behind.find_first_of("/{"));
    if (part.size() <= tail.size() || !part.ends_with(tail)) return false;
    name.remove_prefix(part.size() - tail.size());
    i = end - 1;
  }
  return name.empty();
}

const MetricInfo* find_metric(std::string_view name) {
  static const auto kWhole = [] {
    std::unordered_map<std::string_view, const MetricInfo*> out;
    for (const MetricInfo& info : kTable) out.try_emplace(info.pattern, &info);
    return out;
  }();
  if (const auto at = kWhole.find(name); at != kWhole.end()) return at->second;
  for (const MetricInfo& info : kTable) {
    if (info.pattern.find('{') != std::string_view::npos && metric_pattern_matches(info.pattern, name)) return &info;
  }
  return nullptr;
}

std::string_view reduction_name(Reduction reduction) {
  switch (reduction) {
    case kMean:
      return "mean";
    case kSum:
      return "sum";
    case kMax:
      return "max";
    case kMin:
      return "min";
    case kLast:
      return "last";
  }
  return "?";
}

}  // namespace mortise
