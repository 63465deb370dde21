// Prepares the inputs of the advantage estimator, calls it, and checks its outputs.
#include "experience/advantage/advantage_runner.h"

#include <fmt/core.h>
#include <algorithm>

#include "experience/advantage/reward_aggregation.h"

namespace mortise {

namespace {

// What an estimator may require: columns that stages make for it, and the rewards of each function.
constexpr std::string_view kMadeInputs[] = {"rewards", column::OldLogProb::name, column::Values::name,
                                            column::RewardBaselines::name, column::SumPiSquared::name};

// [B,K] row-major, and [K].
struct FunctionRewards {
  std::vector<float> rewards, weights;
};

FunctionRewards rewards_by_function(const ScoredBatch& scored, size_t num_rows) {
  FunctionRewards out;
  const size_t num_functions = scored.columns.size();
  out.rewards.resize(num_rows * num_functions);
  for (size_t k = 0; k < num_functions; ++k) {
    out.weights.push_back(static_cast<float>(scored.columns[k].weight));
    for (size_t i = 0; i < num_rows; ++i)
      out.rewards[i * num_functions + k] = static_cast<float>(scored.columns[k].values[i]);
  }
  return out;
}

// [B] rows whose reward counts. A row without tokens has no place for one.
std::vector<uint8_t> valid_rows(const StepTable& table, const SampleBatch& samples, const ScoredBatch& scored) {
  std::vector<uint8_t> valid = scored.row_valid;
  for (size_t i = 0; i < valid.size(); ++i) {
    if (table.row_tokens(static_cast<int64_t>(i)) == 0 || samples.rows[i].finish_reason == FinishReason::kAbort)
      valid[i] = 0;
  }
  return valid;
}

// [N] the reward of each row at its last token, or where the functions that reward tokens put it.
std::vector<float> token_scores(const StepTable& table, const ScoredBatch& scored, std::span<const double> row_rewards,
                                std::span<const uint8_t> row_valid) {
  std::vector<float> out(static_cast<size_t>(table.num_tokens()), 0.0F);
  for (size_t i = 0; i < row_valid.size(); ++i) {
    if (row_valid[i] == 0) continue;
    const std::span<float> row = std::span(out).subspan(static_cast<size_t>(table.row_offsets()[i]),
                                                        static_cast<size_t>(table.row_tokens(static_cast<int64_t>(i))));
    row.back() = static_cast<float>(row_rewards[i]);
    if (scored.token_scores.empty() || scored.token_scores[i].empty()) continue;
    std::ranges::transform(scored.token_scores[i], row.begin(), [](double score) { return static_cast<float>(score); });
  }
  return out;
}

}  // namespace

Result<AdvantageRunner> AdvantageRunner::create(PluginRegistry& registry, const std::string& estimator,
                                                const Json& params, const RunKey& key, const RemoteMaker& remote) {
  auto created = TRY(AdvantageEstimator::create(registry, estimator, params, key, remote));
  for (const std::string& input : created.info().requires_inputs) {
    if (std::ranges::find(kMadeInputs, input) != std::end(kMadeInputs)) continue;
    return Error{ErrorKind::kPlugin,
                 fmt::format("the estimator needs '{}', which this version does not compute", input),
                 created.instance().label(), "choose another algorithm.adv_estimator"};
  }
  return AdvantageRunner(std::move(created));
}

Result<> AdvantageRunner::compute(StepTable& table, const SampleBatch& samples, const ScoredBatch& scored,
                                  const AdvantageOptions& options, std::span<const float> penalty, MetricSet* metrics) {
  if (options.normalize_then_sum && !scored.token_scores.empty()) {
    return Error{ErrorKind::kConfig, "normalize_then_sum needs one number per row, but a reward gives token rewards",
                 "algorithm.multi_objective_aggregation", "remove normalize_then_sum or that reward"};
  }
  const FunctionRewards functions = rewards_by_function(scored, static_cast<size_t>(table.num_rows()));
  table.put<column::RowValid>(valid_rows(table, samples, scored));
  const auto row_valid = table.get<column::RowValid>();
  const std::vector<double> row_rewards =
      options.normalize_then_sum ? normalize_then_sum(scored.columns, table.group_index(), row_valid) : scored.rewards;
  table.put<column::TokenLevelScores>(token_scores(table, scored, row_rewards, row_valid));
  const auto scores = table.get<column::TokenLevelScores>();
  std::vector<float> rewards(scores.begin(), scores.end());
  for (size_t t = 0; t < penalty.size(); ++t) rewards[t] -= penalty[t];
  table.put<column::TokenLevelRewards>(std::move(rewards));
  table.make<column::Advantages>();
  table.make<column::Returns>();

  AdvantageInput input{table.view(), functions.rewards, functions.weights};
  input.columns.step = options.step;
  return estimator_.compute(input, {table.edit<column::Advantages>(), table.edit<column::Returns>()}, metrics);
}

void add_teacher_advantages(double coefficient, StepTable& table, MetricSet& metrics) {
  if (!table.has<column::TeacherLogProb>()) return;
  const auto teacher = table.get<column::TeacherLogProb>(), old = table.get<column::OldLogProb>();
  const auto mask = table.get<column::SampleMask>();
  const std::span<float> advantages = table.edit<column::Advantages>();
  double kl = 0, count = 0;
  for (size_t t = 0; t < advantages.size(); ++t) {
    if (mask[t] == 0) continue;
    const double gap = static_cast<double>(teacher[t]) - static_cast<double>(old[t]);
    advantages[t] = static_cast<float>(static_cast<double>(advantages[t]) + coefficient * gap);
    kl -= gap;
    count += 1;
  }
  if (count > 0) metrics.add_mean("actor/teacher_kl", kl / count, count);
}

}  // namespace mortise
