// Ranks that score a batch together: who scores which prompts, and that no rank waits for the workers of another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>

#include "experience/reward/reward_runner.h"
#include "support/meeting_point.h"
#include "support/shared_lists.h"
#include "support/temp_dir.h"

namespace mortise::test {
namespace {

using testing::ElementsAre;
using Lists = std::vector<std::vector<int64_t>>;

TEST(SharedPrompts, RanksKeepWhatWaitsAndShareTheRestByItsTokens) {
  const std::vector<int64_t> loads{1, 1, 9, 3, 8, 2};
  std::vector<OwnPrompts> ranks(2);
  ranks[0] = {true, {1}, {0}};
  ranks[1] = {true, {}, {}};
  EXPECT_EQ(deal_prompts(ranks, loads), (Lists{{0, 4, 3}, {2, 5}}));
  ranks[1].works_ahead = false;  // nobody can take from it: what waits is dealt out too
  EXPECT_EQ(deal_prompts(ranks, loads), (Lists{{2, 5, 0}, {4, 3}}));
  ASSERT_OK_AND_ASSIGN(const OwnPrompts read, decode_own_prompts(encode_own_prompts(ranks[0]), 6));
  EXPECT_TRUE(read.works_ahead);
  EXPECT_THAT(read.begun, ElementsAre(1));
  EXPECT_THAT(read.waiting, ElementsAre(0));
  EXPECT_FALSE(decode_own_prompts(encode_own_prompts(ranks[0]), 1).ok()) << "the batch has one prompt";
}

// Two divisions of the same rows among two ranks.
TEST(SharedPrompts, MetricsAreInTheOrderOfRowsWhoeverScoredThem) {
  constexpr size_t kRows = 6;
  const auto joined = [](const std::vector<std::vector<int64_t>>& rows_of_rank) {
    std::vector<ScorePart> parts;
    for (const std::vector<int64_t>& rows : rows_of_rank) {
      ScorePart part;
      part.rows = rows;
      part.output.rewards.assign(kRows, 1.0);
      for (const int64_t row : rows) {
        part.output.metrics.push_back({"one/" + std::to_string(row), 1e16 * static_cast<double>(row), 1.0, 0});
        part.output.metric_rows.push_back(row);
        part.output.failed_rows.push_back({row, 1, "why"});
        part.output.row_values.push_back({row, "length", 2.0, {}});
      }
      parts.push_back(decode_part(encode_part(part), kRows).value());
    }
    return join_parts(std::move(parts), kRows).value();
  };
  for (const Lists& lists : {Lists{{0, 1, 2, 3, 4, 5}, {}}, Lists{{1, 4, 5}, {0, 2, 3}}, Lists{{3}, {0, 1, 2, 4, 5}}}) {
    const RewardOutput output = joined(lists);
    EXPECT_THAT(output.metric_rows, ElementsAre(0, 1, 2, 3, 4, 5));
    ASSERT_EQ(output.metrics.size(), kRows);
    for (size_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(output.metrics[row].name, "one/" + std::to_string(row));
      EXPECT_EQ(output.metrics[row].sum, 1e16 * static_cast<double>(row));
      EXPECT_EQ(output.failed_rows[row].row, static_cast<int64_t>(row));
      EXPECT_EQ(output.row_values[row].row, static_cast<int64_t>(row));
    }
  }
}

// Has a worker that takes one prompt at a time. That of rank 0 is busy until the other rank has scored all that it gets.
class OneWorker : public RewardFunction {
 public:
  OneWorker(bool is_busy, std::atomic<bool>& is_other_done) : is_busy_(is_busy), is_other_done_(&is_other_done) {}

  [[nodiscard]] const std::string& label() const override { return label_; }
  [[nodiscard]] Granularity granularity() const override { return Granularity::kRow; }
  [[nodiscard]] bool works_ahead() const override { return true; }
  Result<> begin(const ScoreRequest& request) override {
    EXPECT_TRUE(request.is_part);
    output_ = {};
    output_.rewards.assign(static_cast<size_t>(request.num_rows), std::numeric_limits<double>::quiet_NaN());
    return {};
  }
  Result<> add(const RewardBatch& rows) override {
    at_work_ = rows.row_id;
    prompts.push_back(rows.group_index.front());
    return {};
  }
  Result<> advance(int wait_ms) override {
    if (is_busy_ && wait_ms > 0) is_other_done_->wait(false);
    if (is_busy_ && !*is_other_done_) return {};
    for (const int64_t row : std::exchange(at_work_, {})) {
      output_.rewards[static_cast<size_t>(row)] = 0.1 * static_cast<double>(row);
      output_.metrics.push_back({"one/sum", 0.1 * static_cast<double>(row), 1.0, MORTISE_REDUCE_SUM});
      output_.metric_rows.push_back(row);
    }
    return {};
  }
  [[nodiscard]] bool wants_more() const override { return at_work_.empty(); }
  void close() override {}
  [[nodiscard]] bool is_idle() const override { return at_work_.empty(); }
  [[nodiscard]] int64_t num_done() const override { return 0; }
  Result<RewardOutput> finish(MetricSet*) override {
    if (!is_busy_) {
      *is_other_done_ = true;
      is_other_done_->notify_all();
    }
    return std::exchange(output_, {});
  }
  Result<std::optional<std::string>> save_state() override { return std::optional<std::string>(); }
  Result<> load_state(std::string_view) override { return {}; }

  std::vector<int64_t> prompts;  // whose rows it scored, in order

 private:
  const std::string label_ = "reward one";
  bool is_busy_;
  std::atomic<bool>* is_other_done_;
  std::vector<int64_t> at_work_;
  RewardOutput output_;
};

// Rank 0 has sampled all prompts, and its worker is busy with the first one.
TEST(SharedPrompts, ARankThatIsDoneScoresThePromptsOfABusyOne) {
  constexpr int64_t kPrompts = 6;
  PromptBatch prompts;
  prompts.prompts.resize(kPrompts);
  SampleBatch samples;
  samples.num_samples_per_prompt = 2;
  for (int64_t row = 0; row < 2 * kPrompts; ++row) samples.rows.emplace_back().prompt_index = row / 2;
  MeetingPoint point(2);
  SharedLists lists;
  std::atomic<bool> is_other_done = false;
  std::vector<std::vector<int64_t>> scored(2);
  std::vector<ScoredBatch> all(2);
  std::vector<MetricSet> metrics(2);
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<size_t>(rank);
      auto made = std::make_unique<OneWorker>(rank == 0, is_other_done);
      const OneWorker& worker = *made;
      RewardSpec spec;
      spec.use = spec.label = "one";
      std::vector<std::unique_ptr<RewardFunction>> functions;
      functions.push_back(std::move(made));
      RewardRunner runner = RewardRunner::over({spec}, std::move(functions), 1.0);
      ScoreRanks ranks;
      ranks.rank = rank;
      ranks.size = 2;
      ranks.exchange = [&, rank](const std::string& own) { return point.meet(rank, own); };
      ranks.share = [&, rank](Lists own) { return lists.share(rank, std::move(own)); };
      EXPECT_OK(runner.use_ranks(std::move(ranks)));
      EXPECT_OK(runner.begin(prompts, 2, {.step = 1}));
      for (int64_t prompt = 0; rank == 0 && prompt < kPrompts; ++prompt) {
        EXPECT_OK(runner.feed(prompts, samples, prompt));
        EXPECT_OK(runner.tend());
      }
      auto done = runner.score(prompts, samples, {.step = 1}, &metrics[at]);
      ASSERT_OK(done);
      all[at] = *std::move(done);
      scored[at] = worker.prompts;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(scored[0], ElementsAre(0));
  EXPECT_THAT(scored[1], ElementsAre(5, 4, 3, 2, 1));
  EXPECT_EQ(all[0].rewards, all[1].rewards);
  for (int64_t row = 0; row < 2 * kPrompts; ++row)
    EXPECT_EQ(all[0].rewards[static_cast<size_t>(row)], 0.1 * static_cast<double>(row));
  EXPECT_DOUBLE_EQ(metrics[0].value("one/sum").value(), 6.6);
  EXPECT_EQ(metrics[0].value("one/sum"), metrics[1].value("one/sum"));
}

}  // namespace
}  // namespace mortise::test
