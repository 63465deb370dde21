#include "experience/advantage/advantage_runner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "experience/advantage/reward_aggregation.h"

namespace mortise {

AdvantageBatch make_layout(const SampleBatch& samples) {
  AdvantageBatch batch;
  batch.row_offsets.push_back(0);
  for (const Sample& sample : samples.rows) {
    batch.row_offsets.push_back(batch.row_offsets.back() + static_cast<int64_t>(sample.token_ids.size()));
    batch.group_index.push_back(sample.prompt_index);
    const bool is_masked = sample.finish_reason == FinishReason::kAbort ||
                           (samples.mask_truncated && sample.finish_reason == FinishReason::kLength);
    batch.response_mask.insert(batch.response_mask.end(), sample.token_ids.size(), is_masked ? 0 : 1);
  }
  return batch;
}

Result<AdvantageRunner> AdvantageRunner::create(PluginRegistry& registry, const std::string& estimator,
                                                const Json& params, const RunKey& key) {
  auto created = TRY(AdvantageEstimator::create(registry, estimator, params, key));
  for (const std::string& input : created.info().requires_inputs) {
    static constexpr std::string_view kKnown[] = {"rewards", "old_log_prob", "values", "reward_baselines",
                                                  "sum_pi_squared"};
    if (std::ranges::find(kKnown, input) != std::end(kKnown)) continue;
    return Error{ErrorKind::kPlugin, "the estimator needs '" + input + "', which this version does not compute",
                 created.instance().label(), "choose another algorithm.adv_estimator"};
  }
  return AdvantageRunner(std::move(created));
}

Result<AdvantageBatch> AdvantageRunner::compute(const SampleBatch& samples, const ScoredBatch& scored,
                                                const AdvantageContext& context, MetricSet* metrics) {
  if (context.normalize_then_sum && !scored.token_scores.empty()) {
    return Error{ErrorKind::kConfig, "normalize_then_sum makes one number of a row, and a reward rewards single tokens",
                 "algorithm.multi_objective_aggregation", "leave it out, or that reward"};
  }
  AdvantageBatch batch = make_layout(samples);
  if (!context.response_mask.empty())
    batch.response_mask.assign(context.response_mask.begin(), context.response_mask.end());
  const auto num_rows = static_cast<size_t>(batch.num_rows());
  const auto num_tokens = static_cast<size_t>(batch.num_tokens());
  const size_t num_functions = scored.columns.size();
  batch.token_level_scores.assign(num_tokens, 0.0F);
  std::vector<float> rewards(num_rows * num_functions);
  std::vector<float> weights;
  for (size_t k = 0; k < num_functions; ++k) {
    weights.push_back(static_cast<float>(scored.columns[k].weight));
    for (size_t i = 0; i < num_rows; ++i)
      rewards[i * num_functions + k] = static_cast<float>(scored.columns[k].values[i]);
  }
  std::vector<uint8_t> row_valid = scored.row_valid;
  for (size_t i = 0; i < num_rows; ++i) {
    if (batch.row_offsets[i + 1] == batch.row_offsets[i] || samples.rows[i].finish_reason == FinishReason::kAbort)
      row_valid[i] = 0;
  }
  const std::vector<double> row_rewards =
      context.normalize_then_sum ? normalize_then_sum(scored.columns, batch.group_index, row_valid) : scored.rewards;
  for (size_t i = 0; i < num_rows; ++i) {
    if (row_valid[i] == 0) continue;
    const std::span<float> row =
        std::span(batch.token_level_scores)
            .subspan(static_cast<size_t>(batch.row_offsets[i]), samples.rows[i].token_ids.size());
    row.back() = static_cast<float>(row_rewards[i]);
    if (scored.token_scores.empty() || scored.token_scores[i].empty()) continue;
    std::ranges::transform(scored.token_scores[i], row.begin(), [](double score) { return static_cast<float>(score); });
  }
  batch.token_level_rewards = batch.token_level_scores;
  for (size_t t = 0; t < context.token_penalty.size(); ++t) batch.token_level_rewards[t] -= context.token_penalty[t];
  batch.advantages.assign(num_tokens, 0.0F);
  batch.returns.assign(num_tokens, 0.0F);

  std::vector<int64_t> row_id(num_rows);
  std::iota(row_id.begin(), row_id.end(), 0);
  AdvantageInput input;
  input.layout = {batch.row_offsets, row_id, batch.group_index};
  input.token_level_rewards = batch.token_level_rewards;
  input.response_mask = batch.response_mask;
  input.rewards = rewards;
  input.reward_weights = weights;
  input.row_valid = row_valid;
  input.old_log_prob = context.old_log_prob;
  input.rollout_is_weights = context.rollout_is_weights;
  input.values = context.values;
  input.reward_baselines = context.reward_baselines;
  input.sum_pi_squared = context.sum_pi_squared;
  input.step = context.step;
  TRY(estimator_.compute(input, {batch.advantages, batch.returns}, metrics));
  return batch;
}

}  // namespace mortise
