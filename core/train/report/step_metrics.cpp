// Computes the metrics of a step from the structs of its stages.
#include "train/report/step_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "foundation/batch/rank_block.h"
#include "foundation/formats/json.h"
#include "learn/update/sampled_share.h"

namespace mortise {

namespace {

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double v : values) sum += v;
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

// With Bessel's correction, as torch and TRL; 0 for fewer than two.
double std_of(const std::vector<double>& values) {
  if (values.size() < 2) return 0.0;
  const double mean = mean_of(values);
  double sum = 0.0;
  for (const double v : values) sum += (v - mean) * (v - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

std::vector<double> without_nan(const std::vector<double>& values) {
  std::vector<double> out;
  std::copy_if(values.begin(), values.end(), std::back_inserter(out), [](double v) { return !std::isnan(v); });
  return out;
}

// Share of the groups with a valid row whose valid rewards are all equal.
double share_of_flat_groups(const SampleBatch& samples, const ScoredBatch& scored) {
  int64_t groups = 0, flat = 0;
  for (size_t begin = 0; begin < samples.rows.size();) {
    size_t end = begin;
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (; end < samples.rows.size() && samples.rows[end].prompt_index == samples.rows[begin].prompt_index; ++end) {
      if (scored.row_valid[end] == 0) continue;
      low = std::min(low, scored.rewards[end]);
      high = std::max(high, scored.rewards[end]);
    }
    if (low <= high) {
      ++groups;
      flat += low == high ? 1 : 0;
    }
    begin = end;
  }
  return groups == 0 ? 0.0 : static_cast<double>(flat) / static_cast<double>(groups);
}

// A plain prompt is one turn. The system's message is not a turn.
double num_turns(const Prompt& prompt) {
  const auto messages = parse_json(prompt.messages.empty() ? "[{}]" : prompt.messages, "messages of a prompt");
  if (!messages.ok()) return 2.0;  // it was a list when the row was read
  double turns = 1.0;              // the completion
  for (const Json& message : *messages) {
    const Json* role = json_find(message, "role");
    turns += role != nullptr && *role == "system" ? 0.0 : 1.0;
  }
  return turns;
}

// Assistant turns and observations of a row.
double num_messages(const SampleTurns& turns) {
  const auto messages = parse_json(turns.messages, "messages of a row");
  return messages.ok() ? static_cast<double>(messages->size()) : static_cast<double>(turns.num_assistant);
}

bool has_several_turns(const SampleBatch& samples) {
  return std::ranges::any_of(samples.rows, [](const Sample& sample) { return sample.turns.num_assistant > 0; });
}

// Adds verl's counts and TRL's frequencies of calls, if the rows could call tools.
void add_tool_metrics(const SampleBatch& samples, MetricSet& metrics) {
  if (!has_several_turns(samples)) return;
  std::vector<double> counts;
  double calls = 0, failed = 0, lost = 0;
  for (const Sample& sample : samples.rows) {
    counts.push_back(static_cast<double>(sample.turns.num_tool_calls));
    calls += counts.back();
    failed += static_cast<double>(sample.turns.num_failed_calls);
    lost += sample.turns.failure.empty() ? 0 : 1;
  }
  const auto rows = static_cast<double>(samples.rows.size());
  metrics.add_summary("tool_call_counts", counts);
  metrics.add_mean("tools/call_frequency", calls / rows, 1.0);
  metrics.add_mean("tools/failure_frequency", calls > 0 ? failed / calls : 0.0, 1.0);
  metrics.add_mean("environment/failed_ratio", lost / rows, 1.0);
}

}  // namespace

std::vector<double> turns_of(const PromptBatch& prompts, const SampleBatch& samples) {
  std::vector<double> of_prompt, of_row;
  for (const Prompt& prompt : prompts.prompts) of_prompt.push_back(num_turns(prompt));
  for (const Sample& sample : samples.rows) {
    of_row.push_back(of_prompt[static_cast<size_t>(sample.prompt_index)]);
    if (sample.turns.num_assistant > 0) of_row.back() += num_messages(sample.turns) - 1.0;
  }
  return of_row;
}

int64_t count_tokens(const PromptBatch& prompts, const SampleBatch& samples) {
  size_t tokens = 0;
  for (const Sample& sample : samples.rows) {
    tokens += sample.token_ids.size() + prompts.prompts[static_cast<size_t>(sample.prompt_index)].token_ids.size();
  }
  return static_cast<int64_t>(tokens);
}

void add_length_metrics(const PromptBatch& prompts, const SampleBatch& samples, int64_t max_prompt_length,
                        MetricSet& metrics) {
  std::vector<double> prompt_lengths, lengths, terminated, not_empty;
  double clipped = 0, prompt_clipped = 0, aborted = 0, not_empty_clipped = 0;
  for (const Sample& sample : samples.rows) {
    const auto prompt_length =
        static_cast<int64_t>(prompts.prompts[static_cast<size_t>(sample.prompt_index)].token_ids.size());
    prompt_lengths.push_back(static_cast<double>(prompt_length));
    prompt_clipped += prompt_length >= max_prompt_length ? 1 : 0;
    lengths.push_back(static_cast<double>(sample.token_ids.size()));
    clipped += sample.finish_reason == FinishReason::kStop ? 0 : 1;
    aborted += sample.token_ids.empty() ? 1 : 0;
    if (sample.finish_reason == FinishReason::kStop) terminated.push_back(lengths.back());
    if (sample.token_ids.empty()) continue;
    not_empty.push_back(lengths.back());
    not_empty_clipped += sample.finish_reason == FinishReason::kStop ? 0 : 1;
  }
  const auto count = static_cast<double>(std::max<size_t>(1, lengths.size()));
  metrics.add_summary("prompt_length", prompt_lengths);
  metrics.add_mean("prompt_length/clip_ratio", prompt_clipped / count, 1.0);
  metrics.add_summary("response_length", lengths);
  metrics.add_mean("response_length/clip_ratio", clipped / count, 1.0);
  metrics.add_mean("response/aborted_ratio", aborted / count, 1.0);
  metrics.add_summary("num_turns", turns_of(prompts, samples));
  add_tool_metrics(samples, metrics);
  metrics.add_summary("response_length_non_aborted", not_empty);
  if (!not_empty.empty())
    metrics.add("response_length_non_aborted/clip_ratio", not_empty_clipped, static_cast<double>(not_empty.size()));
  metrics.add_mean("completions/mean_length", mean_of(lengths), 1.0);
  metrics.add("completions/min_length", *std::min_element(lengths.begin(), lengths.end()));
  metrics.add("completions/max_length", *std::max_element(lengths.begin(), lengths.end()));
  metrics.add_mean("completions/clipped_ratio", clipped / count, 1.0);
  metrics.add_mean("completions/mean_terminated_length", mean_of(terminated), 1.0);
  metrics.add("completions/min_terminated_length",
              terminated.empty() ? 0.0 : *std::min_element(terminated.begin(), terminated.end()));
  metrics.add("completions/max_terminated_length",
              terminated.empty() ? 0.0 : *std::max_element(terminated.begin(), terminated.end()));
}

void add_reward_metrics(const SampleBatch& samples, const ScoredBatch& scored, MetricSet& metrics) {
  const std::vector<double> rewards = without_nan(scored.rewards);
  std::vector<double> scores;  // verl leaves empty responses out
  for (size_t i = 0; i < samples.rows.size(); ++i) {
    if (!std::isnan(scored.rewards[i]) && !samples.rows[i].token_ids.empty()) scores.push_back(scored.rewards[i]);
  }
  metrics.add_summary("critic/score", scores);
  if (!rewards.empty()) {  // without any reward there is no mean, which is not 0
    metrics.add_mean("reward", mean_of(rewards), 1.0);
    metrics.add_mean("reward_std", std_of(rewards), 1.0);
    metrics.add_mean("frac_reward_zero_std", share_of_flat_groups(samples, scored), 1.0);
  }
  const auto num_rows = static_cast<double>(std::max<size_t>(1, scored.row_valid.size()));
  const auto num_nan = static_cast<double>(std::count(scored.row_valid.begin(), scored.row_valid.end(), 0));
  metrics.add_mean("frac_reward_nan", num_nan / num_rows, 1.0);
  for (const RewardColumn& column : scored.columns) {
    const std::vector<double> values = without_nan(column.values);
    const std::string prefix = "rewards/" + column.name;
    if (!values.empty()) {
      metrics.add_mean(prefix + "/mean", mean_of(values), 1.0);
      metrics.add_mean(prefix + "/std", std_of(values), 1.0);
    }
    const auto rows = static_cast<double>(std::max<size_t>(1, column.values.size()));
    const auto is_error = [](const std::string& error) { return !error.empty(); };
    const auto absent = static_cast<double>(column.values.size() - values.size()) -
                        static_cast<double>(std::ranges::count_if(column.errors, is_error));
    metrics.add_mean(prefix + "/not_applicable", absent / rows, 1.0);
    metrics.add(prefix + "/failed", static_cast<double>(column.num_failed));
    for (const auto& [name, numbers] : column.extra) {
      const std::vector<double> given = without_nan(numbers);
      if (given.empty()) continue;
      const auto count = static_cast<double>(given.size());
      // Drops names that no metric may have; the completion files have them.
      (void)metrics.add_user("reward_extra/" + name, mean_of(given) * count, count, Reduction::kMean);
    }
  }
}

void add_advantage_metrics(const ScoredBatch& scored, const StepTable& table, MetricSet& metrics) {
  const auto token_rewards = table.get<column::TokenLevelRewards>(), token_advantages = table.get<column::Advantages>(),
             token_returns = table.get<column::Returns>();
  const auto mask = table.get<column::ResponseMask>();
  const auto offsets = table.row_offsets();
  std::vector<double> rewards, advantages, returns;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    double sum = 0.0;
    const bool has_score = scored.row_valid[i] != 0 && offsets[i] < offsets[i + 1];
    for (auto t = static_cast<size_t>(offsets[i]); t < static_cast<size_t>(offsets[i + 1]); ++t) {
      sum += static_cast<double>(token_rewards[t]);
      if (mask[t] == 0) continue;
      advantages.push_back(static_cast<double>(token_advantages[t]));
      returns.push_back(static_cast<double>(token_returns[t]));
    }
    if (has_score) rewards.push_back(sum);
  }
  metrics.add_summary("critic/rewards", rewards);
  metrics.add_summary("critic/advantages", advantages);
  metrics.add_summary("critic/returns", returns);
}

void add_staleness_metrics(const SampleBatch& samples, int64_t now, MetricSet& metrics) {
  for (const Sample& sample : samples.rows) {
    const auto age = static_cast<double>(now - sample.weight_version);
    metrics.add("training/off_policy/trajectory_staleness", age);
    metrics.add("training/off_policy/trajectory_staleness_worst", age);
    if (sample.spans.empty()) continue;
    metrics.add("training/off_policy/trajectory_spans", static_cast<double>(sample.spans.size()));
    double ages = 0, tokens = 0;
    for (const auto& [version, num_tokens] : sample.spans) {
      ages += static_cast<double>((now - version) * num_tokens);
      tokens += static_cast<double>(num_tokens);
    }
    if (tokens > 0) metrics.add_mean("training/off_policy/token_staleness", ages / tokens, tokens);
  }
}

void add_critic_metrics(const StepTable& table, MetricSet& metrics) {
  const auto values = table.get<column::Values>(), returns = table.get<column::Returns>();
  const auto mask = table.get<column::ResponseMask>();
  std::vector<double> seen, target, missed;
  for (size_t t = 0; t < values.size(); ++t) {
    if (mask[t] == 0) continue;
    seen.push_back(static_cast<double>(values[t]));
    target.push_back(static_cast<double>(returns[t]));
    missed.push_back(target.back() - seen.back());
  }
  metrics.add_summary("critic/values", seen);
  const double deviation = std_of(target), rest = std_of(missed);
  metrics.add_mean("critic/vf_explained_var", 1.0 - rest * rest / (deviation * deviation + 1e-5), 1.0);
}

void add_rollout_probs_metrics(const StepTable& table, MetricSet& metrics) {
  const auto sampler = table.get<column::RolloutLogProb>(), trainer = table.get<column::FirstLogProb>();
  const auto mask = table.get<column::SampleMask>();
  std::vector<double> difference;
  double logp_sum = 0, logp_max = 0, sx = 0, sy = 0, sxx = 0, syy = 0, sxy = 0;
  for (size_t t = 0; t < sampler.size(); ++t) {
    if (mask[t] == 0) continue;
    const double x = std::exp(static_cast<double>(sampler[t]));
    const double y = std::exp(static_cast<double>(trainer[t]));
    difference.push_back(std::abs(x - y));
    const double logp = std::abs(static_cast<double>(sampler[t]) - static_cast<double>(trainer[t]));
    logp_sum += logp;
    logp_max = std::max(logp_max, logp);
    sx += x, sy += y, sxx += x * x, syy += y * y, sxy += x * y;
  }
  if (difference.empty()) return;
  const auto n = static_cast<double>(difference.size());
  metrics.add("training/rollout_probs_diff_valid", 1.0);
  metrics.add("training/rollout_probs_diff_max", *std::max_element(difference.begin(), difference.end()));
  metrics.add_mean("training/rollout_probs_diff_mean", mean_of(difference), 1.0);
  metrics.add_mean("training/rollout_probs_diff_std", std_of(difference), 1.0);
  metrics.add_mean("sampling/sampling_logp_difference/mean", logp_sum / n, 1.0);
  metrics.add("sampling/sampling_logp_difference/max", logp_max);
  const double variance = (sxx - sx * sx / n) * (syy - sy * sy / n);
  if (variance > 0)
    metrics.add_mean("training/rollout_actor_probs_pearson_corr", (sxy - sx * sy / n) / std::sqrt(variance), 1.0);
}

void add_variance_proxies(const StepTable& table, MetricSet& metrics) {
  const auto squared = table.get<column::SumPiSquared>(), old_log_prob = table.get<column::OldLogProb>(),
             weights = table.get<column::RolloutIsWeights>(), advantages = table.get<column::Advantages>();
  if (squared.empty() || old_log_prob.empty() || table.num_rows() == 0) return;
  const auto mask = table.get<column::ResponseMask>();
  const auto offsets = table.row_offsets();
  double power = 0.0, squared_advantages = 0.0, squared_norms = 0.0;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    double norm = 0.0, weighted_norm = 0.0, advantage = 0.0, weight = 0.0, count = 0.0;
    for (auto t = static_cast<size_t>(offsets[i]); t < static_cast<size_t>(offsets[i + 1]); ++t) {
      if (mask[t] == 0) continue;
      const double p = std::exp(static_cast<double>(old_log_prob[t]));
      const double w = weights.empty() ? 1.0 : static_cast<double>(weights[t]);
      const double token_norm = 1.0 - 2.0 * p + static_cast<double>(squared[t]);
      norm += token_norm;
      weighted_norm += w * w * token_norm;
      advantage += static_cast<double>(advantages[t]);
      weight += w;
      count += 1.0;
    }
    if (count == 0.0) continue;
    const double a = advantage / count, w = weight / count;
    power += w * w * a * a * std::max(norm, 0.0);
    squared_advantages += a * a;
    squared_norms += weighted_norm;
  }
  const auto rows = static_cast<double>(table.num_rows());
  metrics.add_mean("variance_proxy/proxy2_total_power", power / rows, 1.0);
  metrics.add_mean("variance_proxy/expected_a_squared", squared_advantages / rows, 1.0);
  metrics.add_mean("variance_proxy/expected_w", squared_norms / rows, 1.0);
}

void finish_variance_proxies(int64_t num_rows, MetricSet& metrics) {
  const auto power = metrics.value("variance_proxy/proxy2_total_power"), norm = metrics.value("actor/grad_norm");
  if (!power || !norm) return;
  const double signal = *norm * *norm;
  metrics.add_mean("variance_proxy/proxy1_signal_strength", signal, 1.0);
  if (num_rows < 2) return;
  const double noise = (*power - signal) / static_cast<double>(num_rows - 1);
  metrics.add_mean("variance_proxy/proxy3_pure_noise", noise < 0.0 ? 0.0 : noise, 1.0);  // NaN stays NaN
}

std::vector<MetricValue> update_row(const UpdateReport& update, bool with_kl, const PluginInfo& loss) {
  std::vector<MetricValue> row{{"loss", update.sums.loss}, {"grad_norm", update.grad_norm}, {"lr", update.lr}};
  const auto tokens = static_cast<double>(std::max<int64_t>(1, update.sums.num_tokens));
  if (with_kl) row.push_back({"kl", update.sums.kl / tokens});
  row.push_back({"entropy", update.sums.entropy / tokens});
  for (const auto& [name, source] :
       {std::pair{"clip_ratio_low", "clip_ratio/low_mean"}, std::pair{"clip_ratio_high", "clip_ratio/high_mean"},
        std::pair{"clip_ratio_region", "clip_ratio/region_mean"}}) {
    if (const auto value = update.metrics.value(source)) row.push_back({name, *value});
  }
  for (const std::string& metric : loss.update_metrics) {  // "name" or "column=name"
    const size_t equals = metric.find('=');
    const std::string source = equals == std::string::npos ? metric : metric.substr(equals + 1);
    if (const auto value = update.metrics.value(source)) row.push_back({metric.substr(0, equals), *value});
  }
  return row;
}

void add_update_metrics(const std::vector<UpdateReport>& updates, const ActorObjective& objective, MetricSet& metrics) {
  for (const UpdateReport& update : updates) {
    const auto tokens = static_cast<double>(update.sums.num_tokens);
    metrics.add_mean("loss", update.sums.loss, 1.0);
    metrics.add_mean("actor/loss", update.sums.loss, 1.0);
    metrics.add_mean("actor/pg_loss", update.sums.pg_loss, 1.0);
    metrics.add("entropy", update.sums.entropy, tokens);
    metrics.add("actor/entropy", update.sums.entropy, tokens);
    metrics.add_mean("actor/entropy_loss", update.sums.entropy_loss, 1.0);
    metrics.add_mean("grad_norm", update.grad_norm, 1.0);
    metrics.add_mean("actor/grad_norm", update.grad_norm, 1.0);
    metrics.add("learning_rate", update.lr);
    metrics.add("actor/lr", update.lr);
    metrics.add("actor/skipped_updates", update.skipped ? 1.0 : 0.0);
    if (objective.uses_kl_loss()) {
      metrics.add("kl", update.sums.kl, tokens);
      metrics.add_mean("actor/kl_loss", update.sums.kl_loss, 1.0);
      metrics.add("actor/kl_coef", objective.kl_loss_coef());
    }
  }
}

Result<> add_run_metrics(const RunCounters& counters, const StepTally& tally, Communicator& ranks, MetricSet& metrics) {
  metrics.add("training/global_step", static_cast<double>(tally.step));
  metrics.add("training/epoch", static_cast<double>(tally.epoch));
  metrics.add("epoch", static_cast<double>(tally.step) / static_cast<double>(tally.steps_per_epoch));
  metrics.add("training/num_updates", static_cast<double>(counters.num_updates));
  metrics.add("num_tokens", static_cast<double>(counters.num_tokens));
  metrics.add("step_time", tally.seconds);
  metrics.add_mean("perf/throughput", static_cast<double>(tally.num_tokens) / tally.seconds / ranks.size(), 1.0);
  metrics.add("perf/failed_saves", static_cast<double>(tally.num_failed_saves));
  double most_memory_gib = tally.memory_gib;
  TRY(ranks.all_reduce_extreme(std::span(&most_memory_gib, 1), Extreme::kMax, "metrics"));
  metrics.add("perf/cpu_memory_used_gb", most_memory_gib);
  return {};
}

void add_rank_metrics(const StepTable& table, const LearnerOptions& options, bool shares_gradients,
                      MetricSet& metrics) {
  const int num_ranks = options.ranks.communicator->size();
  std::vector<double> before(static_cast<size_t>(num_ranks), 0.0), balanced(before);
  const auto tokens_of = [&](int64_t row) {
    return static_cast<double>(table.row_tokens(row) + static_cast<int64_t>(table.row(row).prompt_ids.size()));
  };
  for (int rank = 0; rank < num_ranks; ++rank) {
    const RankBlock block = rank_block(table.num_rows(), rank, num_ranks);
    for (int64_t row = block.begin; row < block.end; ++row) before[static_cast<size_t>(rank)] += tokens_of(row);
  }
  const bool reads_sampled = options.sampled != nullptr;
  const MicroPlan plan = plan_update(table, all_rows(table), options, reads_sampled);
  const RankShare share = reads_sampled ? share_by_home(table, plan, update_loads(table, plan), options.ranks)
                                        : share_update(micro_tokens(table, plan), options.ranks, shares_gradients);
  for (size_t i = 0; i < plan.size(); ++i) {
    const auto first = static_cast<size_t>(share.owners()[i]);
    const auto sharing = static_cast<size_t>(options.ranks.group_size());  // ranks, each with a part of the work
    for (const int64_t row : plan[i]) {
      for (size_t rank = first; rank < first + sharing; ++rank)
        balanced[rank] += tokens_of(row) / static_cast<double>(sharing);
    }
  }
  const auto [least, most] = std::ranges::minmax(before);
  metrics.add_mean("global_seqlen/mean", mean_of(before), 1.0);
  metrics.add("global_seqlen/min", least);
  metrics.add("global_seqlen/max", most);
  metrics.add("global_seqlen/minmax_diff", most - least);
  metrics.add("global_seqlen/balanced_min", std::ranges::min(balanced));
  metrics.add("global_seqlen/balanced_max", std::ranges::max(balanced));
}

void add_timing_metrics(const SampleBatch& samples, const StepTally& tally, MetricSet& metrics) {
  const auto all_tokens = static_cast<double>(tally.num_tokens);
  double new_tokens = 0;
  for (const Sample& sample : samples.rows) new_tokens += static_cast<double>(sample.token_ids.size());
  metrics.add("timing_s/step", tally.seconds);
  metrics.add("perf/total_num_tokens", all_tokens);
  metrics.add("perf/time_per_step", tally.seconds);
  for (const char* part : {"gen", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"}) {
    const double base = std::string_view(part) == "gen" ? new_tokens : all_tokens;
    if (const auto value = metrics.value(std::string("timing_s/") + part); value && base > 0)
      metrics.add_mean(std::string("timing_per_token_ms/") + part, *value * 1e3 / base, 1.0);
  }
}

}  // namespace mortise
