// The order of rows that are in memory: a permutation per epoch, or the order of the files, or of a curriculum.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "experience/data/column_types.h"
#include "experience/data/row_feed.h"
#include "foundation/base/rng.h"
#include "foundation/base/text.h"

namespace mortise {

namespace {

class MemoryFeed : public RowFeed {
 public:
  MemoryFeed(const Dataset& dataset, RowOrder order, RowSchedule schedule, std::vector<double> levels)
      : dataset_(&dataset), order_(std::move(order)), schedule_(std::move(schedule)), levels_(std::move(levels)) {
    if (!order_.curriculum_by_reward) return;
    reward_sums_.resize(static_cast<size_t>(dataset.size()));
    reward_counts_.resize(static_cast<size_t>(dataset.size()));
  }

  [[nodiscard]] int64_t rows_per_epoch() const override { return schedule_.rows_per_epoch(); }

  Result<> go_to(int64_t epoch, int64_t row, StateReader* saved) override {
    if (order_.curriculum_by_reward) TRY(set_levels_by_reward(saved));
    schedule_.go_to(0);
    rows_.clear();
    std::vector<std::vector<int64_t>> sources(schedule_.num_sources());
    for (size_t s = 0; s < sources.size(); ++s) sources[s] = source_order(epoch, s, 0);
    if (sources.size() == 1) {
      rows_ = std::move(sources[0]);
    } else {
      for (int64_t i = 0; i < rows_per_epoch(); ++i) {
        const size_t s = schedule_.next();
        const int64_t given = schedule_.counts()[s] - 1, size = schedule_.rows_of(s);
        if (given > 0 && given % size == 0) sources[s] = source_order(epoch, s, given / size);
        rows_.push_back(sources[s][static_cast<size_t>(given % size)]);
      }
    }
    next_ = row;
    return {};
  }

  Result<std::vector<Prompt>> take(int64_t num_rows) override {
    std::vector<Prompt> out;
    for (int64_t i = 0; i < num_rows; ++i) out.push_back((*dataset_)[rows_[static_cast<size_t>(next_++)]]);
    return out;
  }

  void save_state(StateWriter& writer) const override {
    if (!order_.curriculum_by_reward) return;
    writer.put_vector("reward_sums", reward_sums_);
    writer.put_vector("reward_counts", reward_counts_);
    writer.put_vector("reward_levels", levels_);
  }

  void note_rewards(int64_t row, double sum, int64_t count) override {
    if (!order_.curriculum_by_reward) return;
    reward_sums_[static_cast<size_t>(row)] += sum;
    reward_counts_[static_cast<size_t>(row)] += count;
  }

 private:
  // The levels of an epoch that begins, or those that a checkpoint's epoch began with. NaN: no reward so far.
  Result<> set_levels_by_reward(StateReader* saved) {
    if (saved != nullptr) {
      reward_sums_ = TRY(saved->get_vector<double>("reward_sums"));
      reward_counts_ = TRY(saved->get_vector<int64_t>("reward_counts"));
      levels_ = TRY(saved->get_vector<double>("reward_levels"));
      const auto rows = static_cast<size_t>(dataset_->size());
      if (reward_sums_.size() == rows && reward_counts_.size() == rows && levels_.size() == rows) return {};
      return Error{ErrorKind::kDisk, "the checkpoint does not hold the rewards of all training rows",
                   "data.curriculum_by_reward", "resume from an earlier checkpoint"};
    }
    levels_.clear();
    for (size_t row = 0; row < reward_sums_.size(); ++row) {
      const int64_t count = reward_counts_[row];
      levels_.push_back(count == 0 ? std::nan("") : reward_sums_[row] / static_cast<double>(count));
    }
    return {};
  }

  // The rows of a source in their order; `pass`: how often the epoch began it again.
  [[nodiscard]] std::vector<int64_t> source_order(int64_t epoch, size_t source, int64_t pass) const {
    const bool is_whole = schedule_.num_sources() == 1;
    const int64_t begin = is_whole ? 0 : dataset_->entry_begin(source);
    const int64_t size = schedule_.rows_of(source);
    std::vector<int64_t> rows(static_cast<size_t>(size));
    std::iota(rows.begin(), rows.end(), 0);
    if (order_.shuffle) {
      const uint64_t seed =
          is_whole ? order_.seed
                   : random_u64({order_.seed, RandomPurpose::kDataShuffle, source + 1, static_cast<uint64_t>(pass)});
      rows = random_permutation(size, seed, RandomPurpose::kDataShuffle, static_cast<uint64_t>(epoch));
    }
    for (int64_t& row : rows) row += begin;
    if (levels_.empty()) return rows;
    const bool falls = order_.curriculum_order == CurriculumOrder::kDescending;
    std::ranges::stable_sort(rows, [&](int64_t a, int64_t b) {  // equal levels keep the order from above
      const double x = levels_[static_cast<size_t>(a)], y = levels_[static_cast<size_t>(b)];
      if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);  // unknown ones are the last
      return falls ? x > y : x < y;
    });
    return rows;
  }

  const Dataset* dataset_;
  RowOrder order_;
  RowSchedule schedule_;
  std::vector<double> levels_;  // the curriculum's level of each row; empty: none
  std::vector<int64_t> rows_;   // the epoch's rows, in order
  int64_t next_ = 0;
  std::vector<double> reward_sums_;     // for a curriculum by reward: one sum per row of the data set
  std::vector<int64_t> reward_counts_;  // completions with a reward
};

Result<std::vector<double>> levels_of(const Dataset& dataset, const std::string& key) {
  std::vector<double> levels;
  for (int64_t row = 0; row < dataset.size(); ++row) {
    const Json* level = column_at(dataset[row].columns, key);
    if (level != nullptr && level->is_number() && std::isfinite(level->get<double>())) {
      levels.push_back(level->get<double>());
      continue;
    }
    return Error{ErrorKind::kData,
                 fmt::format("data.curriculum_key is {}, but the row has {} there", quote(key),
                             level == nullptr || level->is_null() ? "nothing" : quote(dump_json(*level))),
                 dataset.where(row), "give every row a number (in CSV files, declare it in data.columns)"};
  }
  return levels;
}

}  // namespace

Result<RowSchedule> make_schedule(const Dataset& dataset, const RowOrder& order) {
  std::vector<ScheduleSource> sources;
  if (order.weights.empty()) sources.push_back({dataset.size(), 1});
  for (size_t i = 0; i < order.weights.size(); ++i)
    sources.push_back({dataset.entry_begin(i + 1) - dataset.entry_begin(i), order.weights[i]});
  return RowSchedule::create(sources, order.stopping);
}

Result<std::unique_ptr<RowFeed>> make_memory_feed(const Dataset& dataset, const RowOrder& order) {
  std::vector<double> levels;
  if (order.curriculum_key) levels = TRY(levels_of(dataset, *order.curriculum_key));
  RowSchedule schedule = TRY(make_schedule(dataset, order));
  return std::unique_ptr<RowFeed>(std::make_unique<MemoryFeed>(dataset, order, std::move(schedule), std::move(levels)));
}

}  // namespace mortise
