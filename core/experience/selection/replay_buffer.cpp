// See replay_buffer.h.
#include "experience/selection/replay_buffer.h"

#include <algorithm>
#include <span>

#include "experience/selection/row_choice.h"

namespace mortise {

namespace {

std::span<const double> rewards_of(const Experience& experience, int64_t group) {
  const auto n = static_cast<size_t>(experience.samples.num_samples_per_prompt);
  return std::span(experience.scored.rewards).subspan(static_cast<size_t>(group) * n, n);
}

// Groups of another n, or with other rewards, cannot be in one batch.
bool fits_together(const Experience& one, const Experience& other) {
  return one.samples.num_samples_per_prompt == other.samples.num_samples_per_prompt &&
         std::ranges::equal(one.scored.columns, other.scored.columns, {}, &RewardColumn::name, &RewardColumn::name);
}

}  // namespace

std::vector<ReplayBuffer::Group> ReplayBuffer::usable(const Experience& fresh, int64_t step) const {
  std::vector<Group> out;
  for (const Group& group : groups_) {
    const bool is_too_old = config_.max_age > 0 && step - group.step > config_.max_age;
    if (!is_too_old && fits_together(group.rows, fresh)) out.push_back(group);
  }
  return out;
}

void ReplayBuffer::add(const Experience& fresh, int64_t step, const std::vector<int64_t>& groups) {
  for (const int64_t group : groups) {
    Group& added = next_.emplace_back();
    added.step = step;
    added.spread = spread_of(rewards_of(fresh, group));
    added.rows = take_groups(fresh, std::vector<int64_t>{group});
    added.rows.prompts.prompts.front().sampled_in_step = step;
    for (RewardColumn& column : added.rows.scored.columns) column.num_failed = 0;  // its own step has counted them
  }
  std::ranges::stable_sort(next_, [](const Group& a, const Group& b) {
    return a.spread != b.spread ? a.spread > b.spread : a.step > b.step;
  });
  if (std::ssize(next_) > config_.size) next_.resize(static_cast<size_t>(config_.size));
}

Experience ReplayBuffer::exchange(const Experience& fresh, int64_t step, MetricSet& metrics) {
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
    append_groups(pool, group.rows);
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
  Experience all;
  for (const Group& group : groups_) append_groups(all, group.rows);
  writer.put_bytes("groups", encode_experience(all));
  return {};
}

Result<> ReplayBuffer::load_state(StateReader& reader) {
  groups_.clear();
  const std::string bytes = TRY(reader.get_bytes("groups"));
  const Experience all = TRY(decode_experience(bytes, state_name()));
  for (int64_t group = 0; group < all.num_groups(); ++group) {
    Group& loaded = groups_.emplace_back();
    loaded.rows = take_groups(all, std::vector<int64_t>{group});
    loaded.step = loaded.rows.prompts.prompts.front().sampled_in_step;
    loaded.spread = spread_of(rewards_of(loaded.rows, 0));
  }
  return {};
}

}  // namespace mortise
