// See replay_buffer.h.
#include "experience/selection/replay_buffer.h"

#include <algorithm>
#include <span>

#include "experience/selection/row_choice.h"
#include "foundation/base/hints.h"

namespace mortise {

namespace {

std::span<const double> rewards_of(const Experience& experience, int64_t group) {
  const auto n = static_cast<size_t>(experience.samples.num_samples_per_prompt);
  return std::span(experience.scored.rewards).subspan(static_cast<size_t>(group) * n, n);
}

}  // namespace

ReplayBuffer::Group ReplayBuffer::group_of(const Experience& rows, std::string bytes) {
  Group group;
  group.step = rows.prompts.prompts.front().sampled_in_step;
  group.spread = spread_of(rewards_of(rows, 0));
  group.num_rows = rows.samples.num_samples_per_prompt;
  for (const RewardColumn& column : rows.scored.columns) group.rewards.push_back(column.name);
  group.bytes = std::make_shared<const std::string>(std::move(bytes));
  return group;
}

// Groups of another n, or with other rewards, cannot be in one batch.
bool ReplayBuffer::fits(const Group& group, const Experience& fresh) {
  return group.num_rows == fresh.samples.num_samples_per_prompt &&
         std::ranges::equal(group.rewards, fresh.scored.columns, {}, {}, &RewardColumn::name);
}

std::vector<ReplayBuffer::Group> ReplayBuffer::usable(const Experience& fresh, int64_t step) const {
  std::vector<Group> out;
  for (const Group& group : groups_) {
    const bool is_too_old = config_.max_age > 0 && step - group.step > config_.max_age;
    if (!is_too_old && fits(group, fresh)) out.push_back(group);
  }
  return out;
}

void ReplayBuffer::add(const Experience& fresh, int64_t step, const std::vector<int64_t>& groups) {
  for (const int64_t group : groups) {
    Experience rows = take_groups(fresh, std::vector<int64_t>{group});
    rows.prompts.prompts.front().sampled_in_step = step;
    for (RewardColumn& column : rows.scored.columns) column.num_failed = 0;  // its own step has counted them
    next_.push_back(group_of(rows, encode_experience(rows)));
  }
  std::ranges::stable_sort(next_, [](const Group& a, const Group& b) {
    return a.spread != b.spread ? a.spread > b.spread : a.step > b.step;
  });
  if (std::ssize(next_) > config_.size) next_.resize(static_cast<size_t>(config_.size));
}

Result<Experience> ReplayBuffer::exchange(const Experience& fresh, int64_t step, MetricSet& metrics) {
  std::vector<int64_t> differing, flat;
  for (int64_t group = 0; group < fresh.num_groups(); ++group)
    (values_differ(rewards_of(fresh, group)) ? differing : flat).push_back(group);
  next_ = usable(fresh, step);
  std::vector<double> spreads;
  for (const Group& group : next_) spreads.push_back(group.spread);
  const std::vector<size_t> drawn = draw_groups(spreads, flat.size(), seed_, step);

  Experience pool = fresh;
  std::vector<int64_t> order(static_cast<size_t>(fresh.num_groups()));
  for (size_t group = 0; group < order.size(); ++group) order[group] = static_cast<int64_t>(group);
  double age = 0;
  for (size_t i = 0; i < drawn.size(); ++i) {
    const Group& group = next_[drawn[i]];
    order[static_cast<size_t>(flat[i])] = pool.num_groups();
    append_groups(pool, TRY(decode_experience(*group.bytes, state_name())));
    age += static_cast<double>(step - group.step);
  }
  Experience learnt = take_groups(pool, order);
  learnt.prompts.step = fresh.prompts.step;
  learnt.prompts.epoch = fresh.prompts.epoch;

  metrics.add("training/replay_buffer/replaced", static_cast<double>(drawn.size()));
  if (!drawn.empty()) {
    const auto count = static_cast<double>(drawn.size());
    metrics.add_mean("training/replay_buffer/age", age / count, count);
  }
  add(fresh, step, differing);
  metrics.add("training/replay_buffer/size", static_cast<double>(next_.size()));
  return learnt;
}

Result<> ReplayBuffer::save_state(StateWriter& writer) const {
  writer.put_int("num_groups", std::ssize(groups_));
  for (size_t i = 0; i < groups_.size(); ++i) writer.put_bytes(std::to_string(i), *groups_[i].bytes);
  return {};
}

Result<> ReplayBuffer::load_state(StateReader& reader) {
  groups_.clear();
  const int64_t num_groups = TRY(reader.get_int("num_groups"));
  for (int64_t i = 0; i < num_groups; ++i) {
    std::string bytes = TRY(reader.get_bytes(std::to_string(i)));
    const Experience rows = TRY(decode_experience(bytes, state_name()));
    if (rows.num_groups() != 1) {
      return Error{ErrorKind::kData, "an entry of the replay buffer is not one group", state_name(),
                   hints::kDamagedCheckpoint};
    }
    groups_.push_back(group_of(rows, std::move(bytes)));
  }
  return {};
}

}  // namespace mortise
