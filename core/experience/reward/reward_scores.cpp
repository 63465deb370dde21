// See reward_scores.h.
#include "experience/reward/reward_scores.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "plugin/worker/channel.h"

namespace mortise {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Estimators sum rewards and their squares in float32: beyond this they overflow.
constexpr double kMaxReward = 1e15;

constexpr const char* kEnvironmentColumn = "environment";

// Length limit of a failed row's reason, in the column and so in the completion files.
constexpr size_t kMaxErrorBytes = 200;

double sum_of(std::span<const float> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// The largest number that a row was given, by its size.
double extreme_of(double value, std::span<const float> tokens) {
  for (const float token : tokens) {
    if (std::abs(static_cast<double>(token)) > std::abs(value)) value = static_cast<double>(token);
  }
  return value;
}

// Rewards that no estimator can compute with are failures of their rows.
void fail_overflowing_rows(Scores& scores, std::vector<FailedRow>& failed) {
  RewardColumn& column = scores.column;
  for (size_t i = 0; i < column.values.size(); ++i) {
    const double value = extreme_of(column.values[i], scores.tokens(i));
    if (!(std::abs(value) > kMaxReward) && !(std::abs(column.weight * value) > kMaxReward)) continue;
    std::string text = "gave " + format_f64(value);
    if (column.weight != 1.0) text += fmt::format(" (weight {})", format_f64(column.weight));
    failed.push_back(
        {static_cast<int64_t>(i), 0, text + ", which is above 1e15 and too large to average; scale it down"});
    column.values[i] = kNaN;
  }
}

void note_failures(std::vector<FailedRow> failed, Scores& scores) {
  RewardColumn& column = scores.column;
  column.num_failed = static_cast<int64_t>(failed.size());
  if (failed.empty()) return;
  std::ranges::stable_sort(failed, {}, &FailedRow::row);
  scores.failures = failures_text(failed);
  column.errors.resize(column.values.size());
  for (const FailedRow& row : failed) column.errors[static_cast<size_t>(row.row)] = shorten(row.text, kMaxErrorBytes);
}

}  // namespace

Scores take_scores(const RewardSpec& spec, Result<RewardOutput> output, size_t num_rows) {
  Scores scores;
  RewardColumn& column = scores.column;
  column.name = spec.label;
  column.weight = spec.weight;
  if (!output.ok()) {
    column.values.assign(num_rows, kNaN);
    column.num_failed = static_cast<int64_t>(num_rows);
    scores.failures = one_line(failure_text(output.error()));
    column.errors.assign(num_rows, shorten(scores.failures, kMaxErrorBytes));
    return scores;
  }
  column.values = scores.row_rewards = std::move(output->rewards);
  scores.token_rewards = std::move(output->token_rewards);
  for (size_t i = 0; i < num_rows; ++i) column.values[i] += sum_of(scores.tokens(i));
  std::vector<FailedRow> failed = std::move(output->failed_rows);
  fail_overflowing_rows(scores, failed);
  note_failures(std::move(failed), scores);
  for (RowValue& value : output->row_values) {
    const auto row = static_cast<size_t>(value.row);
    if (value.text) {
      std::vector<std::string>& texts = column.texts[value.name];
      texts.resize(num_rows);
      texts[row] = *std::move(value.text);
      continue;
    }
    auto [entry, created] = column.extra.try_emplace(value.name);
    if (created) entry->second.assign(num_rows, kNaN);
    entry->second[row] = value.value;
  }
  return scores;
}

Scores environment_scores(const SampleBatch& samples, double weight) {
  Scores scores;
  scores.column.name = kEnvironmentColumn;
  scores.column.weight = weight;
  const auto is_given = [](float x) { return x != 0.0F; };
  for (const Sample& sample : samples.rows) {
    const std::vector<double>& rewards = sample.turns.rewards;
    std::vector<float> earlier(rewards.begin(), rewards.end());
    if (!earlier.empty()) earlier.back() = 0.0F;
    if (std::ranges::none_of(earlier, is_given)) earlier.clear();
    scores.row_rewards.push_back(rewards.empty() ? kNaN : rewards.back());
    scores.column.values.push_back(scores.row_rewards.back() + sum_of(earlier));
    scores.token_rewards.push_back(std::move(earlier));
  }
  const auto has_none = [](const std::vector<float>& tokens) { return tokens.empty(); };
  if (std::ranges::all_of(scores.token_rewards, has_none)) scores.token_rewards.clear();
  return scores;
}

void void_failed_episodes(const SampleBatch& samples, std::vector<Scores>& all) {
  for (size_t row = 0; row < samples.rows.size(); ++row) {
    const std::string& failure = samples.rows[row].turns.failure;
    if (failure.empty()) continue;
    for (Scores& scores : all) {
      scores.column.values[row] = kNaN;
      if (row < scores.row_rewards.size()) scores.row_rewards[row] = kNaN;
      if (row < scores.token_rewards.size()) scores.token_rewards[row].clear();
      scores.column.errors.resize(samples.rows.size());
      scores.column.errors[row] = shorten("environment: " + failure, kMaxErrorBytes);
    }
  }
}

std::vector<std::vector<double>> place_on_tokens(const SampleBatch& samples, const std::vector<Scores>& all) {
  const auto gives_any = [](const Scores& scores) { return !scores.token_rewards.empty(); };
  if (std::none_of(all.begin(), all.end(), gives_any)) return {};
  std::vector<std::vector<double>> out(samples.rows.size());
  for (size_t row = 0; row < out.size(); ++row) {
    const auto on_tokens = [row](const Scores& scores) { return !scores.tokens(row).empty(); };
    if (std::none_of(all.begin(), all.end(), on_tokens)) continue;
    out[row].assign(samples.rows[row].token_ids.size(), 0.0);
    for (const Scores& scores : all) {
      if (std::isnan(scores.column.values[row])) continue;
      const double weight = scores.column.weight;
      const std::span<const float> tokens = scores.tokens(row);
      for (size_t t = 0; t < tokens.size(); ++t) out[row][t] += weight * static_cast<double>(tokens[t]);
      out[row].back() += weight * scores.row_rewards[row];
    }
  }
  return out;
}

void sum_columns(ScoredBatch& scored, size_t num_rows) {
  scored.rewards.assign(num_rows, 0.0);
  scored.row_valid.assign(num_rows, 0);
  for (const RewardColumn& column : scored.columns) {
    // With reward_weight = 0 the environment's rewards are shown alone. A row whose other rewards failed has none.
    if (column.name == kEnvironmentColumn && column.weight == 0) continue;
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

}  // namespace mortise
