#include "experience/reward/reward_runner.h"

#include <cmath>
#include <limits>
#include <map>

#include "foundation/base/log.h"

namespace mortise {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Fills a column from one call's output; a call that failed as a whole is a failure of every row.
RewardColumn make_column(const RewardSpec& spec, Result<RewardOutput> output, size_t num_rows) {
  RewardColumn column;
  column.name = spec.label;
  column.weight = spec.weight;
  if (!output.ok()) {
    column.values.assign(num_rows, kNaN);
    column.num_failed = static_cast<int64_t>(num_rows);
    column.first_failure = output.error().to_string();
    return column;
  }
  column.values = std::move(output->rewards);
  column.num_failed = static_cast<int64_t>(output->failed_rows.size());
  if (!output->failed_rows.empty()) {
    const FailedRow& first = output->failed_rows.front();
    column.first_failure = "row " + std::to_string(first.row) + ": " + first.text;
  }
  for (const RowValue& value : output->row_values) {
    auto [entry, created] = column.extra.try_emplace(value.name);
    if (created) entry->second.assign(num_rows, kNaN);
    entry->second[static_cast<size_t>(value.row)] = value.value;
  }
  return column;
}

void sum_columns(ScoredBatch& scored, size_t num_rows) {
  scored.rewards.assign(num_rows, 0.0);
  scored.row_valid.assign(num_rows, 0);
  for (const RewardColumn& column : scored.columns) {
    for (size_t i = 0; i < num_rows; ++i) {
      if (std::isnan(column.values[i])) continue;
      scored.rewards[i] += column.weight * column.values[i];
      scored.row_valid[i] = 1;
    }
  }
  for (size_t i = 0; i < num_rows; ++i) {
    if (scored.row_valid[i] == 0) scored.rewards[i] = kNaN;
  }
}

}  // namespace

RewardBatch make_reward_batch(const PromptBatch& prompts, const SampleBatch& samples, const ScoreContext& context) {
  RewardBatch batch;
  batch.num_rows = static_cast<int64_t>(samples.rows.size());
  batch.step = context.step;
  batch.max_response_length = context.max_response_length;
  batch.is_validation = context.is_validation;
  std::vector<std::string> names;  // in order of first appearance
  std::map<std::string, std::vector<const Json*>> values;
  for (size_t i = 0; i < samples.rows.size(); ++i) {
    const Sample& sample = samples.rows[i];
    const Prompt& prompt = prompts.prompts[static_cast<size_t>(sample.prompt_index)];
    batch.prompt.append(prompt.text);
    batch.completion.append(sample.text);
    batch.messages.append(prompt.messages);
    batch.prompt_ids.append(prompt.token_ids);
    batch.completion_ids.append(sample.token_ids);
    batch.finish_reason.push_back(static_cast<int32_t>(sample.finish_reason));
    batch.group_index.push_back(sample.prompt_index);
    batch.sample_index.push_back(sample.sample_index);
    batch.row_id.push_back(static_cast<int64_t>(i));
    for (const auto& [name, value] : prompt.columns.items()) {
      auto [entry, created] = values.try_emplace(name);
      if (created) {
        names.push_back(name);
        entry->second.assign(samples.rows.size(), nullptr);
      }
      entry->second[i] = &value;
    }
  }
  for (const std::string& name : names) batch.columns.push_back(DataColumn::from_json(name, values[name]));
  return batch;
}

RewardRunner::RewardRunner(std::vector<Function> functions, double max_failed_fraction)
    : functions_(std::move(functions)), max_failed_fraction_(max_failed_fraction) {}

Result<RewardRunner> RewardRunner::create(PluginRegistry& registry, const std::vector<RewardSpec>& specs,
                                          const RunKey& key, double max_failed_fraction) {
  std::vector<Function> functions;
  for (const RewardSpec& spec : specs) {
    functions.push_back({spec, TRY(Reward::create(registry, spec.use, spec.params, key))});
  }
  return RewardRunner(std::move(functions), max_failed_fraction);
}

Result<ScoredBatch> RewardRunner::score(const PromptBatch& prompts, const SampleBatch& samples,
                                        const ScoreContext& context, MetricSet* metrics) {
  const RewardBatch batch = make_reward_batch(prompts, samples, context);
  const size_t num_rows = samples.rows.size();
  ScoredBatch scored;
  for (Function& function : functions_) {
    CallOptions options;
    options.timeout_ms = function.spec.timeout_ms;
    scored.columns.push_back(make_column(
        function.spec, function.reward.score(batch, /*want_token_rewards=*/false, metrics, options), num_rows));
    const RewardColumn& column = scored.columns.back();
    if (column.num_failed == 0) continue;
    const std::string summary = "reward '" + column.name + "' failed on " + std::to_string(column.num_failed) + " of " +
                                std::to_string(num_rows) + " rows; first: " + column.first_failure;
    if (static_cast<double>(column.num_failed) > max_failed_fraction_ * static_cast<double>(num_rows)) {
      return Error{ErrorKind::kPlugin, summary, function.reward.instance().label(),
                   "mend the reward, or raise plugins.max_failed_fraction"};
    }
    log_warn(summary);
  }
  sum_columns(scored, num_rows);
  return scored;
}

std::vector<std::pair<std::string, PluginInstance*>> RewardRunner::instances() {
  std::vector<std::pair<std::string, PluginInstance*>> out;
  for (size_t i = 0; i < functions_.size(); ++i) {
    out.emplace_back("reward." + std::to_string(i), &functions_[i].reward.instance());
  }
  return out;
}

}  // namespace mortise
