// Samples and scores the validation prompts, and computes the metrics per data source.
#include "train/loop/validation.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "config/check.h"
#include "train/loop/shared_rollout.h"
#include "train/report/step_metrics.h"

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

// Value of the most frequent text; among equally frequent ones the first.
double majority_value(const std::vector<const Sample*>& samples, const std::vector<double>& values) {
  std::map<std::string, std::pair<int64_t, size_t>> votes;  // text -> votes, first place
  for (size_t i = 0; i < samples.size(); ++i) {
    auto [entry, created] = votes.try_emplace(samples[i]->text, 0, i);
    ++entry->second.first;
  }
  std::pair<int64_t, size_t> best{0, 0};
  for (const auto& [text, vote] : votes) {
    if (vote.first > best.first || (vote.first == best.first && vote.second < best.second)) best = vote;
  }
  return values[best.second];
}

// A number that every completion has, or NaN.
struct Variable {
  std::string name;
  const std::vector<double>* values;  // [B]
};

// The rewards' sum; each reward if there are several; the named numbers of rewards.
std::vector<Variable> variables_of(const ScoredBatch& scored) {
  std::vector<Variable> all{{"reward", &scored.rewards}};
  const auto add = [&](const std::string& name, const std::vector<double>& values) {
    const bool known = std::ranges::any_of(all, [&](const Variable& variable) { return variable.name == name; });
    if (!known) all.push_back({name, &values});
  };
  for (const RewardColumn& column : scored.columns) {
    if (scored.columns.size() > 1) add(column.name, column.values);
    for (const auto& [name, values] : column.extra) add(name, values);
  }
  return all;
}

// One variable over the `n` completions of a prompt, without those that have no value. As in verl, the main variables
// go to val-core and all others, with the worst of k, to val-aux.
void add_statistics(const std::string& source, const std::string& variable, const std::vector<const Sample*>& group,
                    const std::vector<double>& values, int64_t n, MetricSet& metrics) {
  const std::string aux = fmt::format("val-aux/{}/{}/", source, variable);
  const bool is_core = variable == "reward" || variable == "acc";
  const std::string base = is_core ? fmt::format("val-core/{}/{}/", source, variable) : aux;
  // A plugin's names may be such as no metric can have: those are left out here, the dump of completions has them.
  const auto add = [&](const std::string& name, double value) {
    (void)metrics.add_user(name, value, 1.0, Reduction::kMean);
  };
  const auto count = static_cast<double>(values.size());
  const std::string at_n = "@" + std::to_string(n);
  double mean = 0.0, square = 0.0;
  for (const double v : values) mean += v / count;
  for (const double v : values) square += (v - mean) * (v - mean) / count;
  add(fmt::format("{}mean{}", base, at_n), mean);
  if (n == 1) return;
  add(fmt::format("{}std{}/mean", base, at_n), std::sqrt(square));
  std::vector<double> negated;
  for (const double v : values) negated.push_back(-v);
  for (int64_t k = 2; k <= static_cast<int64_t>(values.size()); k *= 2) {
    add(fmt::format("{}best@{}/mean", base, k), expected_best_of(values, k));
    add(fmt::format("{}worst@{}/mean", aux, k), -expected_best_of(negated, k));
  }
  add(fmt::format("{}maj{}/mean", base, at_n), majority_value(group, values));
}

// The training numbers by TRL's names, with eval_ in front.
void add_eval_metrics(const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                      int64_t max_prompt_length, MetricSet& metrics) {
  MetricSet training;
  add_length_metrics(prompts, samples, max_prompt_length, training);
  add_reward_metrics(samples, scored, training);
  for (const MetricValue& metric : training.values()) {
    const std::string& name = metric.name;
    if (name == "reward" || name == "reward_std" || name == "frac_reward_zero_std" || name.starts_with("rewards/") ||
        name.starts_with("completions/"))
      (void)metrics.add_user("eval_" + name, metric.value, 1.0, Reduction::kMean);
  }
}

}  // namespace

void add_validation_metrics(const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                            MetricSet& metrics) {
  const std::vector<Variable> variables = variables_of(scored);
  for (size_t begin = 0, end = 0; begin < samples.rows.size(); begin = end) {
    const int64_t prompt = samples.rows[begin].prompt_index;
    while (end < samples.rows.size() && samples.rows[end].prompt_index == prompt) ++end;
    const std::string& source = prompts.prompts[static_cast<size_t>(prompt)].data_source;
    for (const Variable& variable : variables) {
      std::vector<const Sample*> group;
      std::vector<double> values;
      for (size_t i = begin; i < end; ++i) {
        const double value = (*variable.values)[i];
        if (std::isnan(value)) continue;
        group.push_back(&samples.rows[i]);
        values.push_back(value);
      }
      if (!values.empty())
        add_statistics(source, variable.name, group, values, samples.num_samples_per_prompt, metrics);
    }
  }
  const std::vector<double> turns = turns_of(prompts, samples);
  if (turns.empty()) return;
  const auto [fewest, most] = std::ranges::minmax(turns);
  for (const double value : turns) metrics.add("val-aux/num_turns/mean", value, 1.0);
  metrics.add_mean("val-aux/num_turns/min", fewest, 1.0);
  metrics.add_mean("val-aux/num_turns/max", most, 1.0);
}

Result<ValidationReport> Validator::validate(int64_t step, int64_t weight_version) {
  ValidationReport report;
  report.prompts.step = step;
  for (int64_t i = 0; i < data.size(); ++i) report.prompts.prompts.push_back(data[i]);
  TRY(rollout.set_version(weight_version));
  report.samples =
      TRY(collect_on_ranks(ranks, rollout, report.prompts, plan, config.rollout.max_num_seqs, tokenizer, nullptr));
  ScoreContext context;
  context.step = step;
  context.max_response_length = response_length(config);
  context.is_validation = true;
  report.scored = TRY(reward.score(report.prompts, report.samples, context, nullptr));
  add_validation_metrics(report.prompts, report.samples, report.scored, report.metrics);
  add_eval_metrics(report.prompts, report.samples, report.scored, config.data.max_prompt_length, report.metrics);
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
