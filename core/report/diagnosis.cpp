// The rules. Each is a function that looks at a run and may return a finding; the table at the end lists them.
#include "report/diagnosis.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "foundation/base/text.h"
#include "report/trends.h"

namespace mortise {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Evidence {
  const RunHistory& run;
  const std::vector<ScoredText>& completions;
};
using Found = std::optional<Finding>;

std::string percent(double share) { return fmt::format("{:.0f}%", 100.0 * share); }

Found flat_groups(const Evidence& e) {
  const auto share = recent(e.run, "frac_reward_zero_std");
  if (!share || *share <= 0.5) return {};
  // A group of one has no difference, and a critic needs none.
  const auto samples = e.run.settings.find("rollout.n");
  if ((samples != e.run.settings.end() && samples->second == "1") || e.run.find("critic/vf_loss") != nullptr) return {};
  return Finding{"zero_variance", "Most groups have no difference to learn from",
                 fmt::format("In the last fifth of the steps all completions of {} of the prompts earn the same "
                             "(frac_reward_zero_std).",
                             percent(*share)),
                 "Take easier or harder prompts, raise rollout.n, or set algorithm.filter_groups.enable."};
}

Found saturated_reward(const Evidence& e) {
  const auto reward = recent(e.run, "critic/score/mean");
  const MetricSeries *highs = e.run.find("critic/score/max"), *lows = e.run.find("critic/score/min");
  if (!reward || highs == nullptr || lows == nullptr || highs->size() < kFewestSteps) return {};
  double highest = -kInfinity, lowest = kInfinity;
  for (const MetricPoint& point : *highs) highest = std::max(highest, point.value);
  for (const MetricPoint& point : *lows) lowest = std::min(lowest, point.value);
  if (!(highest > lowest) || *reward < lowest + 0.98 * (highest - lowest)) return {};
  return Finding{"reward_saturation", "The reward is at its highest value",
                 fmt::format("The mean score is {:.3g} and the highest score ever given is {:.3g}.", *reward, highest),
                 "Stop here, or take harder prompts: there is little left to learn from these."};
}

Found longer_without_gain(const Evidence& e) {
  const auto length = ends_of(e.run, "response_length/mean"), reward = ends_of(e.run, "critic/score/mean"),
             spread = ends_of(e.run, "reward_std");
  if (!length || !reward || length->last < 2.0 * length->first) return {};
  const double gain = reward->last - reward->first, noise = spread ? 0.1 * spread->first : 0.0;
  if (gain > noise) return {};
  return Finding{"length_explosion", "Completions grow, and the reward does not",
                 fmt::format("The mean length went from {:.0f} to {:.0f} tokens, the mean score from {:.3g} to {:.3g}.",
                             length->first, length->last, reward->first, reward->last),
                 "Add a length reward (overlong, cosine), or aggregate by sequence: loss_agg_mode = "
                 "\"seq-mean-token-sum-norm\" does not favor long completions."};
}

Found truncated(const Evidence& e) {
  const auto share = recent(e.run, "response_length/clip_ratio");
  if (!share || *share <= 0.2) return {};
  return Finding{
      "truncated", "Many completions are cut off",
      fmt::format("{} of the last completions reached the longest length without an end token.", percent(*share)),
      "Raise data.max_response_length, or add a reward that punishes overlong completions."};
}

Found entropy_collapse(const Evidence& e) {
  const auto entropy = ends_of(e.run, "entropy");
  if (!entropy || entropy->first <= 0.0 || entropy->last > 0.2 * entropy->first) return {};
  return Finding{"entropy_collapse", "The policy's entropy has collapsed",
                 fmt::format("The entropy per token fell from {:.3g} to {:.3g} nats.", entropy->first, entropy->last),
                 "Lower actor.optim.lr, raise actor.clip_ratio_high, or add an entropy bonus (actor.entropy_coeff). If "
                 "the validation still rises, this is the policy becoming sure."};
}

Found far_from_reference(const Evidence& e) {
  for (const char* metric : {"kl", "actor/reward_kl_penalty"}) {
    const auto kl = ends_of(e.run, metric);
    if (!kl || kl->last < 0.5 || kl->last < 5.0 * std::max(kl->first, 1e-6)) continue;
    return Finding{"kl_drift", "The policy is far from the reference",
                   fmt::format("{} went from {:.3g} to {:.3g} nats per token.", metric, kl->first, kl->last),
                   "Lower actor.optim.lr, raise the KL's coefficient, or set trainer.kl_limit."};
  }
  return {};
}

Found clips_often(const Evidence& e) {
  for (const char* metric : {"clip_ratio/region_mean", "actor/pg_clipfrac"}) {
    const auto share = recent(e.run, metric);
    if (!share || *share <= 0.3) continue;
    return Finding{
        "clipping", "The loss clips a large part of the tokens",
        fmt::format("{} is {} in the last fifth of the steps.", metric, percent(*share)),
        "Lower actor.optim.lr or actor.ppo_epochs, or take larger mini-batches: clipped tokens teach nothing."};
  }
  return {};
}

Found mismatch(const Evidence& e) {
  const auto diff = recent(e.run, "training/rollout_probs_diff_mean"),
             corr = recent(e.run, "training/rollout_actor_probs_pearson_corr");
  if (!diff || (*diff <= 0.01 && (!corr || *corr >= 0.99))) return {};
  const auto age = recent(e.run, "training/off_policy/trajectory_staleness");
  if (age && *age > 0) return {};  // older weights have other probabilities
  return Finding{"sampler_mismatch", "Sampler and trainer disagree about probabilities",
                 fmt::format("The mean difference of a token's probability is {:.3g}{}.", *diff,
                             corr ? fmt::format(", their correlation {:.4g}", *corr) : ""),
                 "Sample in the trainer's number format (rollout.dtype), check that the rollout backend has the newest "
                 "weights, or set algorithm.rollout_correction."};
}

// Weight of the reward of this name; 1 if the settings are not known.
double weight_of(const RunHistory& run, const std::string& name) {
  for (size_t i = 0;; ++i) {
    const auto key = [i](const char* leaf) { return fmt::format("reward.{}.{}", i, leaf); };
    const auto use = run.settings.find(key("use")), named = run.settings.find(key("name"));
    if (use == run.settings.end()) return 1.0;
    const bool is_named = named != run.settings.end() && named->second != "null" && named->second != "\"\"";
    if ((is_named ? named->second : use->second) != dump_json(Json(name))) continue;
    const auto weight = run.settings.find(key("weight"));
    return weight == run.settings.end() ? 1.0 : parse_f64(weight->second).value_or(1.0);
  }
}

Found one_reward_rules(const Evidence& e) {
  std::map<std::string, double> shares;
  double sum = 0.0;
  for (const auto& [metric, series] : e.run.metrics) {
    if (!metric.starts_with("rewards/") || !metric.ends_with("/std")) continue;
    const std::string name = metric.substr(8, metric.size() - 12);
    const auto spread = recent(e.run, metric);
    if (!spread) continue;
    sum += shares[name] = *spread * std::abs(weight_of(e.run, name));
  }
  if (shares.size() < 2 || sum <= 0.0) return {};
  const auto largest = std::ranges::max_element(shares, {}, &std::pair<const std::string, double>::second);
  if (largest->second < 0.95 * sum) return {};
  return Finding{"one_reward", "One reward decides almost everything",
                 fmt::format("{} of the spread of all weighted rewards is that of {}.", percent(largest->second / sum),
                             quote(largest->first)),
                 "Change the weights of the rewards, or normalize each of them "
                 "(algorithm.multi_objective_aggregation = \"normalize_then_sum\")."};
}

Found repeated(const Evidence& e) {
  if (e.completions.empty()) return {};
  std::set<std::pair<int64_t, std::string>> distinct;
  std::map<int64_t, int64_t> group_sizes;
  for (const ScoredText& one : e.completions) {
    distinct.emplace(one.prompt_index, one.text);
    ++group_sizes[one.prompt_index];
  }
  const auto rows = static_cast<double>(e.completions.size());
  const double copies = rows - static_cast<double>(distinct.size());
  const double possible = rows - static_cast<double>(group_sizes.size());  // one of each group is no copy
  if (possible < 8.0 || copies <= 0.5 * possible) return {};
  return Finding{
      "repeated_completions", "Most completions of a prompt are the same text",
      fmt::format("In the newest step {:.0f} of {:.0f} completions repeat another one of their prompt.", copies, rows),
      "Raise rollout.temperature, or stop: the policy has settled on one answer for each prompt."};
}

bool has_failure_counts(const RunHistory& run) {
  return std::ranges::any_of(run.metrics, [](const auto& metric) {
    return metric.first.starts_with("rewards/") && metric.first.ends_with("/failed");
  });
}

Found failing_rewards(const Evidence& e) {
  const auto none = recent(e.run, "frac_reward_nan");
  std::string failed;
  for (const auto& [metric, series] : e.run.metrics) {
    if (!metric.starts_with("rewards/") || !metric.ends_with("/failed")) continue;
    const auto rows = recent(e.run, metric);
    if (rows && *rows > 0.0)
      failed += fmt::format(" {} fails on {:.3g} rows a step.", quote(metric.substr(8, metric.size() - 15)), *rows);
  }
  if (failed.empty() && (!none || *none <= 0.05)) return {};
  const std::string missing =
      none && *none > 0.0 ? fmt::format("{} of the last completions have no reward.", percent(*none)) : "";
  // Without a failure, every reward has answered that it does not apply (a Python function: None).
  return Finding{
      "failed_rewards", "Rewards are missing", std::string(trim(missing + failed)),
      failed.empty() && has_failure_counts(e.run)
          ? "No reward failed: none of them applies to these rows. Add a reward for them, or leave the rows out."
          : "Read the reasons in the completion files (trainer.rollout_data_dir, field errors), and fix the reward."};
}

bool is_validation_mean(std::string_view metric) {
  return metric.starts_with("val-core/") && metric.find("/mean@") != metric.npos;
}

// Precondition: the series has a point.
const MetricPoint& best_of(const MetricSeries& series) {
  return *std::ranges::max_element(
      series, {}, [](const MetricPoint& point) { return std::isnan(point.value) ? -kInfinity : point.value; });
}

// The training score at both ends, if it rose by more than 5% and by more than chance explains.
std::optional<Ends> rise_of_training(const RunHistory& run) {
  const auto train = ends_of(run, "critic/score/mean");
  if (!train) return {};
  const double noise = std::max(0.05 * std::abs(train->first), chance_of(*run.find("critic/score/mean")));
  return train->last - train->first > noise ? train : std::nullopt;
}

Found overfitting(const Evidence& e) {
  const auto train = rise_of_training(e.run);
  if (!train) return {};
  for (const auto& [metric, series] : e.run.metrics) {
    if (!is_validation_mean(metric) || series.size() < 3) continue;
    const MetricPoint &best = best_of(series), &last = series.back();
    const double drop = best.value - last.value, range = std::max(std::abs(best.value), 1e-6);
    if (best.step == last.step || !(drop > 0.1 * range)) continue;
    return Finding{"overfitting", "The validation falls while the training reward rises",
                   fmt::format("{} was {:.3g} after step {} and is {:.3g} after step {}; the training score went from "
                               "{:.3g} to {:.3g}.",
                               metric, best.value, best.step, last.value, last.step, train->first, train->last),
                   "Take the checkpoint of the best validation (trainer.metric_for_best_model keeps it), use more "
                   "prompts, or look for a way in which the reward is tricked."};
  }
  return {};
}

// How the training score fell from the best fifth of the run to the last one; empty if it did not.
std::string fall_of_training(const RunHistory& run) {
  const MetricSeries *series = run.find("critic/score/mean"), *lows = run.find("critic/score/min");
  if (series == nullptr || lows == nullptr || series->size() < kFewestSteps) return {};
  const size_t window = window_of(*series);
  double best = -kInfinity, lowest = kInfinity;
  int64_t best_step = 0;
  for (size_t end = window; end <= series->size(); ++end) {
    const double mean = mean_of(*series, end - window, end);
    if (!(mean > best)) continue;
    best = mean;
    best_step = (*series)[end - 1].step;
  }
  for (const MetricPoint& point : *lows) lowest = std::min(lowest, point.value);
  const double last = mean_of(*series, series->size() - window, series->size());
  if (!(best - last > std::max(0.5 * (best - lowest), 2.0 * chance_of(*series)))) return {};
  return fmt::format("The mean score was {:.3g} up to step {} and is {:.3g} at the end.", best, best_step, last);
}

// The standard error of a validation's mean over its prompts; 0 where the run has none.
double standard_error(const RunHistory& run, const std::string& mean, int64_t step) {
  std::string name = "val-aux" + mean.substr(std::string_view("val-core").size());
  name.replace(name.rfind("/mean@"), std::string_view("/mean").size(), "/stderr");
  const MetricSeries* series = run.find(name);
  if (series == nullptr) return 0.0;
  const auto point = std::ranges::find(*series, step, &MetricPoint::step);
  return point != series->end() && std::isfinite(point->value) ? point->value : 0.0;
}

std::string fall_of_validation(const RunHistory& run) {
  for (const auto& [metric, series] : run.metrics) {
    if (!is_validation_mean(metric)) continue;
    const MetricPoint &best = best_of(series), &last = series.back();
    const double chance =
        2.0 * std::hypot(standard_error(run, metric, best.step), standard_error(run, metric, last.step));
    if (best.value > 0.0 && last.value < 0.5 * best.value && best.value - last.value > chance)
      return fmt::format("{} was {:.3g} after step {} and is {:.3g} after step {}.", metric, best.value, best.step,
                         last.value, last.step);
  }
  return {};
}

Found reward_collapse(const Evidence& e) {
  std::string evidence = fall_of_training(e.run);
  if (evidence.empty() && !rise_of_training(e.run)) evidence = fall_of_validation(e.run);
  if (evidence.empty()) return {};
  return Finding{"reward_collapse", "The policy got worse", evidence,
                 "Lower actor.optim.lr first. Then read the completions of the steps where the score fell."};
}

Found failed_run(const Evidence& e) {
  if (e.run.state != "failed") return {};
  const auto error = std::ranges::find(e.run.events.rbegin(), e.run.events.rend(), "error", &RunEvent::level);
  return Finding{
      "failed_run", "The run ended with an error",
      error == e.run.events.rend() ? "live.json says so." : std::string(error->text),
      "Read the end of log.txt, correct the cause, and start the run again: it resumes from its last checkpoint."};
}

Found skipped_updates(const Evidence& e) {
  const MetricSeries* series = e.run.find("actor/skipped_updates");
  if (series == nullptr) return {};
  double sum = 0.0;
  int64_t first = 0;
  for (const MetricPoint& point : *series) {
    if (!(point.value > 0.0)) continue;
    sum += point.value;
    if (first == 0) first = point.step;
  }
  if (sum == 0.0) return {};
  return Finding{"skipped_updates", "Updates were skipped because their gradient was not finite",
                 fmt::format("{:.0f} updates, the first in step {}.", sum, first),
                 "Lower actor.optim.lr or actor.grad_clip, and look at the completions of that step."};
}

// The slope's sign is taken from the two halves; noise is the scatter of the steps around their half's mean.
Found no_progress(const Evidence& e) {
  const MetricSeries* series = e.run.find("critic/score/mean");
  if (series == nullptr || series->size() < 50 || saturated_reward(e)) return {};
  const size_t half = series->size() / 2;
  const double first = mean_of(*series, 0, half), second = mean_of(*series, half, series->size());
  double squares = 0.0;
  for (size_t i = 0; i < series->size(); ++i) {
    const double from = (*series)[i].value - (i < half ? first : second);
    if (std::isfinite(from)) squares += from * from;
  }
  const double variance = squares / static_cast<double>(series->size() - 2);
  const double noise = std::sqrt(variance * 4.0 / static_cast<double>(series->size()));
  if (!(second - first < 2.0 * noise)) return {};
  return Finding{"no_progress", "The reward does not rise",
                 fmt::format("The mean score is {:.4g} in the first half of {} steps and {:.4g} in the second; chance "
                             "alone moves it by {:.2g}.",
                             first, series->size(), second, 2.0 * noise),
                 "Look at completions and their rewards first. Then raise actor.optim.lr, rollout.n, or the number of "
                 "prompts per step."};
}

struct Rule {
  const char* name;
  Found (*look)(const Evidence&);
};

constexpr Rule kRules[] = {{"failed_run", failed_run},
                           {"reward_collapse", reward_collapse},
                           {"failed_rewards", failing_rewards},
                           {"skipped_updates", skipped_updates},
                           {"sampler_mismatch", mismatch},
                           {"kl_drift", far_from_reference},
                           {"entropy_collapse", entropy_collapse},
                           {"zero_variance", flat_groups},
                           {"repeated_completions", repeated},
                           {"reward_saturation", saturated_reward},
                           {"no_progress", no_progress},
                           {"overfitting", overfitting},
                           {"length_explosion", longer_without_gain},
                           {"truncated", truncated},
                           {"clipping", clips_often},
                           {"one_reward", one_reward_rules}};

}  // namespace

std::vector<Finding> diagnose(const RunHistory& run, const std::vector<ScoredText>& last_completions) {
  std::vector<Finding> out;
  for (const Rule& rule : kRules) {
    if (Found found = rule.look({run, last_completions})) out.push_back(*std::move(found));
  }
  return out;
}

std::string docs_of(const Finding& finding) { return "docs/diagnosis.md#" + finding.rule; }

std::vector<std::string> diagnosis_rules() {
  std::vector<std::string> names;
  for (const Rule& rule : kRules) names.emplace_back(rule.name);
  return names;
}

}  // namespace mortise
