#include "train/validation.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace mortise {

double expected_best_of(std::vector<double> values, int64_t k) {
  std::sort(values.begin(), values.end());
  const auto n = static_cast<int64_t>(values.size());
  // P(the i-th smallest is the best) = C(i, k-1) / C(n, k); the ratio of successive terms is i / (i - k + 1).
  double share = 1.0;  // C(k-1, k-1) / C(n, k)
  for (int64_t j = 1; j <= k; ++j) share *= static_cast<double>(j) / static_cast<double>(n - k + j);
  double sum = 0.0;
  for (int64_t i = k - 1; i < n; ++i) {
    sum += share * values[static_cast<size_t>(i)];
    share *= static_cast<double>(i + 1) / static_cast<double>(i + 2 - k);
  }
  return sum;
}

namespace {

// Reward of the most frequent text; among equally frequent ones the first.
double majority_reward(const std::vector<const Sample*>& samples, const std::vector<double>& rewards) {
  std::map<std::string, std::pair<int64_t, size_t>> votes;  // text -> votes, first place
  for (size_t i = 0; i < samples.size(); ++i) {
    auto [entry, created] = votes.try_emplace(samples[i]->text, 0, i);
    ++entry->second.first;
  }
  std::pair<int64_t, size_t> best{0, 0};
  for (const auto& [text, vote] : votes) {
    if (vote.first > best.first || (vote.first == best.first && vote.second < best.second)) best = vote;
  }
  return rewards[best.second];
}

}  // namespace

void add_validation_metrics(const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                            MetricSet& metrics) {
  for (size_t begin = 0; begin < samples.rows.size();) {
    const int64_t prompt = samples.rows[begin].prompt_index;
    std::vector<const Sample*> group;
    std::vector<double> rewards;
    size_t end = begin;
    for (; end < samples.rows.size() && samples.rows[end].prompt_index == prompt; ++end) {
      if (scored.row_valid[end] == 0) continue;
      group.push_back(&samples.rows[end]);
      rewards.push_back(scored.rewards[end]);
    }
    begin = end;
    if (rewards.empty()) continue;
    const auto n = static_cast<int64_t>(rewards.size());
    const std::string prefix = "val-core/" + prompts.prompts[static_cast<size_t>(prompt)].data_source + "/reward/";
    const std::string at_n = "@" + std::to_string(samples.num_samples_per_prompt);
    double mean = 0.0, square = 0.0;
    for (const double r : rewards) mean += r / static_cast<double>(n);
    for (const double r : rewards) square += (r - mean) * (r - mean) / static_cast<double>(n);
    metrics.add_mean(prefix + "mean" + at_n, mean, 1.0);
    if (samples.num_samples_per_prompt == 1) continue;
    metrics.add_mean(prefix + "std" + at_n + "/mean", std::sqrt(square), 1.0);
    for (int64_t k = 2; k <= n; k *= 2)
      metrics.add_mean(prefix + "best@" + std::to_string(k) + "/mean", expected_best_of(rewards, k), 1.0);
    metrics.add_mean(prefix + "maj" + at_n + "/mean", majority_reward(group, rewards), 1.0);
  }
}

Result<ValidationReport> validate(RunParts& parts, int64_t step) {
  ValidationReport report;
  report.prompts.step = step;
  for (int64_t i = 0; i < parts.val_data->size(); ++i) report.prompts.prompts.push_back((*parts.val_data)[i]);
  TRY(parts.val_rollout->set_version(parts.counters.weight_version));
  report.samples = TRY(parts.val_rollout->collect(report.prompts, val_plan(parts), parts.folder->tokenizer, nullptr));
  ScoreContext context;
  context.step = step;
  context.max_response_length = response_length(parts.config);
  context.is_validation = true;
  report.scored = TRY(parts.reward->score(report.prompts, report.samples, context, nullptr));
  add_validation_metrics(report.prompts, report.samples, report.scored, report.metrics);
  double sum = 0.0;
  for (size_t i = 0; i < report.scored.rewards.size(); ++i) {
    if (report.scored.row_valid[i] == 0) continue;
    sum += report.scored.rewards[i];
    ++report.num_rows;
  }
  report.mean_reward = report.num_rows == 0 ? 0.0 : sum / static_cast<double>(report.num_rows);
  return report;
}

}  // namespace mortise
