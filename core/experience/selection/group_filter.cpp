// Decides which groups differ in the metric, and keeps surplus groups for the next step.
#include "experience/selection/group_filter.h"

#include <fmt/core.h>
#include <cmath>
#include <numeric>

#include "experience/selection/row_choice.h"
#include "foundation/base/suggest.h"
#include "foundation/base/text.h"

namespace mortise {

namespace {

std::string where_of(int64_t step) { return "step " + std::to_string(step); }

// The metric of every row: the rewards' sum, one reward's values, or a number that a reward reports.
Result<std::vector<double>> metric_of(const ScoredBatch& scored, const std::string& name, int64_t step) {
  if (name == "seq_reward" || name == "score") return scored.rewards;
  std::vector<std::string> known{"seq_reward"};
  for (const RewardColumn& column : scored.columns) {
    if (column.name == name) return column.values;
    known.push_back(column.name);
    if (const auto found = column.extra.find(name); found != column.extra.end()) return found->second;
    for (const auto& [extra, values] : column.extra) known.push_back(extra);
  }
  return Error{ErrorKind::kConfig,
               fmt::format("'algorithm.filter_groups.metric' is {}, which no reward gives", quote(name)),
               where_of(step), use_one_of(known)};
}

}  // namespace

bool GroupFilter::is_in_range(std::span<const double> values) const {
  if (!config_.min_mean && !config_.max_mean) return true;
  double sum = 0, count = 0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    sum += value;
    count += 1;
  }
  if (count == 0) return false;
  const double mean = sum / count;
  return (!config_.min_mean || mean > *config_.min_mean) && (!config_.max_mean || mean < *config_.max_mean);
}

void GroupFilter::begin_step(int64_t step) {
  step_ = step;
  kept_ = carried_;
  sampled_rows_.assign(kept_.samples.rows.size(), -1);
  num_batches_ = num_dropped_ = num_idle_ = 0;
}

Result<> GroupFilter::add(const Experience& batch) {
  const std::vector<double> metric = TRY(metric_of(batch.scored, config_.metric, step_));
  const auto n = static_cast<size_t>(batch.samples.num_samples_per_prompt);
  std::vector<int64_t> groups;
  for (int64_t g = 0; g < batch.num_groups(); ++g) {
    const std::span<const double> values = std::span(metric).subspan(static_cast<size_t>(g) * n, n);
    if ((n == 1 ? !std::isnan(values[0]) : values_differ(values)) && is_in_range(values)) groups.push_back(g);
  }
  for (const int64_t g : groups) {
    const int64_t first = (num_batches_ * batch.num_groups() + g) * static_cast<int64_t>(n);
    for (int64_t row = first; row < first + static_cast<int64_t>(n); ++row) sampled_rows_.push_back(row);
  }
  ++num_batches_;
  num_idle_ = groups.empty() ? num_idle_ + batch.num_groups() : 0;
  num_dropped_ += batch.num_groups() - static_cast<int64_t>(groups.size());
  if (!groups.empty()) append_groups(kept_, take_groups(batch, groups));
  return {};
}

Result<> GroupFilter::check_more(int64_t num_dataset_prompts) const {
  const auto too_few = [&](const std::string& after, std::string next) {
    return Error{ErrorKind::kData,
                 fmt::format("only {} of the {} groups that a step needs have rewards that differ{}, after {} "
                             "(algorithm.filter_groups)",
                             kept_.num_groups(), groups_per_step_,
                             config_.min_mean || config_.max_mean ? " and a mean in the range" : "", after),
                 where_of(step_), std::move(next)};
  };
  const std::string advice = "use prompts of medium difficulty, or more samples (rollout.n)";
  if (config_.max_num_gen_batches > 0 && num_batches_ >= config_.max_num_gen_batches) {
    return too_few(fmt::format("{} generation {}", num_batches_, num_batches_ == 1 ? "batch" : "batches"),
                   "raise algorithm.filter_groups.max_num_gen_batches, or " + advice);
  }
  if (num_idle_ >= num_dataset_prompts) return too_few("a pass over all the data that gave none", advice);
  return {};
}

Experience GroupFilter::take(MetricSet& metrics) {
  std::vector<int64_t> groups(static_cast<size_t>(groups_per_step_));
  std::iota(groups.begin(), groups.end(), 0);
  Experience taken = take_groups(kept_, groups);
  taken.prompts.step = step_;
  metrics.add("train/num_gen_batches", static_cast<double>(num_batches_));
  metrics.add("training/filter_groups/dropped", static_cast<double>(num_dropped_));
  metrics.add("training/filter_groups/carried", static_cast<double>(kept_.num_groups() - groups_per_step_));
  return taken;
}

void GroupFilter::commit() {
  std::vector<int64_t> rest(static_cast<size_t>(kept_.num_groups() - groups_per_step_));
  std::iota(rest.begin(), rest.end(), groups_per_step_);
  carried_ = rest.empty() ? Experience{} : take_groups(kept_, rest);
  kept_ = {};
}

Result<> GroupFilter::save_state(StateWriter& writer) const {
  writer.put_bytes("carried", encode_experience(carried_));
  return {};
}

Result<> GroupFilter::load_state(StateReader& reader) {
  const std::string bytes = TRY(reader.get_bytes("carried"));
  carried_ = TRY(decode_experience(bytes, state_name()));
  return {};
}

}  // namespace mortise
