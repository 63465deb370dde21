// Samples and scores the validation prompts, and computes the metrics per data source.
#include "train/loop/validation.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "config/check.h"
#include "foundation/base/log.h"
#include "train/loop/val_statistics.h"
#include "train/report/step_metrics.h"
#include "train/sampling/shared_rollout.h"

namespace mortise {

namespace {

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

// The answers of the completions, as numbers from 0: what a reward found, else the whole text.
std::vector<size_t> votes_of(const SampleBatch& samples, const ScoredBatch& scored) {
  const std::vector<std::string>* answers = nullptr;
  for (const RewardColumn& column : scored.columns) {
    const auto found = column.texts.find("pred");
    if (answers == nullptr && found != column.texts.end()) answers = &found->second;
  }
  std::map<std::string_view, size_t> numbers;
  std::vector<size_t> votes;
  for (size_t i = 0; i < samples.rows.size(); ++i) {
    const std::string_view answer = answers != nullptr ? (*answers)[i] : samples.rows[i].text;
    votes.push_back(numbers.try_emplace(answer, numbers.size()).first->second);
  }
  return votes;
}

// The completions of a prompt that have a value of the variable.
struct Group {
  std::vector<double> values;
  std::vector<size_t> votes;  // numbered from 0 within the group
};

// Collects the statistics of all prompts.
class Statistics {
 public:
  Statistics(int64_t n, std::vector<int64_t> pass_k, MetricSet& metrics)
      : n_(n), pass_k_(pass_k.empty() ? pass_sizes(n) : std::move(pass_k)), metrics_(metrics) {}

  void add(const std::string& source, const std::string& variable, const Group& group) {
    const std::vector<double>& values = group.values;
    const auto count = static_cast<double>(values.size());
    double mean = 0.0, square = 0.0;
    for (const double v : values) mean += v / count;
    for (const double v : values) square += (v - mean) * (v - mean) / count;
    base_ = fmt::format("{}/{}/", source, variable);
    is_main_ = variable == "reward" || variable == "acc";
    put(true, fmt::format("mean@{}", n_), mean);
    prompt_means_[base_].push_back(mean);
    if (n_ == 1) return;
    put(false, fmt::format("std@{}", n_), std::sqrt(square));
    for (const int64_t k : pass_k_) {
      if (k <= static_cast<int64_t>(values.size())) put(true, fmt::format("pass@{}", k), expected_best_of(values, k));
    }
    put(true, fmt::format("vote@{}", n_), majority_value(values, group.votes));
    for (const int64_t k : bootstrap_sizes(n_)) {
      const std::span<const uint32_t> draws = draws_.of(values.size(), static_cast<size_t>(k));
      put_drawn(k == n_, fmt::format("best@{}", k), drawn_best(values, draws));
      put_drawn(k == n_, fmt::format("maj@{}", k), drawn_majority(values, group.votes, draws));
      put_drawn(false, fmt::format("worst@{}", k), drawn_worst(values, draws));
    }
  }

  // After all prompts: the standard errors of the means. One prompt says nothing of the others.
  void finish() {
    is_main_ = false;  // val-aux
    for (const auto& [base, means] : prompt_means_) {
      const auto count = static_cast<double>(means.size());
      if (means.size() < 2) continue;
      double mean = 0.0, square = 0.0;
      for (const double v : means) mean += v / count;
      for (const double v : means) square += (v - mean) * (v - mean) / (count - 1.0);
      base_ = base;
      put(false, fmt::format("stderr@{}", n_), std::sqrt(square / count));
    }
  }

 private:
  // A data source or a number of a plugin may have a name that no metric can have. The dump of completions has it.
  void put(bool is_core, const std::string& name, double value) {
    const char* const section = is_core && is_main_ ? "val-core/" : "val-aux/";
    const auto added = metrics_.add_user(section + base_ + name, value, 1.0, Reduction::kMean);
    if (added.ok() || std::exchange(has_told_, true)) return;
    log_warn_once(fmt::format("validation: {}. Other such names have no metrics either", added.error().to_string()));
  }
  void put_drawn(bool is_core, const std::string& name, const DrawnStatistic& drawn) {
    put(is_core, name + "/mean", drawn.mean);
    put(is_core, name + "/std", drawn.std);
  }

  int64_t n_;
  std::vector<int64_t> pass_k_;
  MetricSet& metrics_;
  BootstrapDraws draws_;
  std::map<std::string, std::vector<double>> prompt_means_;  // by base_
  std::string base_;                                         // "SOURCE/VARIABLE/"
  bool is_main_ = false;
  bool has_told_ = false;  // that a metric is missing
};

std::string source_name(const std::string& set, const std::string& data_source) {
  if (set.empty()) return data_source;
  return data_source == "unknown" || data_source == set ? set : fmt::format("{}/{}", set, data_source);
}

// The training numbers by TRL's names, with eval_ in front, and the name of a set.
void add_eval_metrics(const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                      int64_t max_prompt_length, const std::string& prefix, MetricSet& metrics) {
  MetricSet training;
  add_length_metrics(prompts, samples, max_prompt_length, training);
  add_reward_metrics(samples, scored, training);
  for (const MetricValue& metric : training.values()) {
    const std::string& name = metric.name;
    if (name == "reward" || name == "reward_std" || name == "frac_reward_zero_std" || name.starts_with("rewards/") ||
        name.starts_with("completions/"))
      (void)metrics.add_user(prefix + name, metric.value, 1.0, Reduction::kMean);
  }
}

}  // namespace

void add_validation_metrics(const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                            MetricSet& metrics, const std::string& set, std::vector<int64_t> pass_k) {
  const std::vector<Variable> variables = variables_of(scored);
  const std::vector<size_t> votes = votes_of(samples, scored);
  Statistics statistics(samples.num_samples_per_prompt, std::move(pass_k), metrics);
  for (size_t begin = 0, end = 0; begin < samples.rows.size(); begin = end) {
    const int64_t prompt = samples.rows[begin].prompt_index;
    while (end < samples.rows.size() && samples.rows[end].prompt_index == prompt) ++end;
    const std::string source = source_name(set, prompts.prompts[static_cast<size_t>(prompt)].data_source);
    for (const Variable& variable : variables) {
      Group group;
      std::map<size_t, size_t> numbers;
      for (size_t i = begin; i < end; ++i) {
        const double value = (*variable.values)[i];
        if (std::isnan(value)) continue;
        group.values.push_back(value);
        group.votes.push_back(numbers.try_emplace(votes[i], numbers.size()).first->second);
      }
      if (!group.values.empty()) statistics.add(source, variable.name, group);
    }
  }
  statistics.finish();
  const std::vector<double> turns = turns_of(prompts, samples);
  if (turns.empty()) return;
  const auto [fewest, most] = std::ranges::minmax(turns);
  const std::string base = set.empty() ? "val-aux/num_turns/" : fmt::format("val-aux/{}/num_turns/", set);
  for (const double value : turns) (void)metrics.add_user(base + "mean", value, 1.0, Reduction::kMean);
  (void)metrics.add_user(base + "min", fewest, 1.0, Reduction::kMean);
  (void)metrics.add_user(base + "max", most, 1.0, Reduction::kMean);
}

Result<SampleBatch> Validator::sample(const PromptBatch& prompts, const RolloutPlan& plan, int64_t weight_version) {
  if (sampler != nullptr) return sampler->validate(prompts, plan, weight_version);
  TRY(rollout.set_version(weight_version));
  return collect_on_ranks(ranks, rollout, prompts, plan, config.rollout, tokenizer, nullptr);
}

Result<ValidatedSet> Validator::validate_set(const ValidationPart& part, int64_t step, int64_t weight_version) {
  ValidatedSet out;
  out.name = part.set->name;
  out.prompts.step = step;
  for (int64_t i = 0; i < part.rows->size(); ++i) out.prompts.prompts.push_back((*part.rows)[i]);
  out.samples = TRY(sample(out.prompts, part.plan, weight_version));
  ScoreContext context;
  context.step = step;
  context.max_response_length = response_length(config);
  context.is_validation = true;
  context.val_set = part.set->name;
  context.only = part.set->rewards;
  out.scored = TRY(reward.score(out.prompts, out.samples, context, nullptr));
  return out;
}

Result<ValidationReport> Validator::validate(int64_t step, int64_t weight_version) {
  ValidationReport report;
  double sum = 0.0;
  for (const ValidationPart& part : parts) {
    const ValidatedSet& set = report.sets.emplace_back(TRY(validate_set(part, step, weight_version)));
    add_validation_metrics(set.prompts, set.samples, set.scored, report.metrics, set.name, part.set->kwargs.pass_k);
    const std::string prefix = set.name.empty() ? "eval_" : fmt::format("eval_{}_", set.name);
    add_eval_metrics(set.prompts, set.samples, set.scored, config.data.max_prompt_length, prefix, report.metrics);
    for (size_t i = 0; i < set.scored.rewards.size(); ++i) {
      if (set.scored.row_valid[i] == 0) continue;
      sum += set.scored.rewards[i];
      ++report.num_rows;
    }
  }
  report.mean_reward = report.num_rows == 0 ? 0.0 : sum / static_cast<double>(report.num_rows);
  return report;
}

}  // namespace mortise
