// Ranks that score a batch together: who scores which prompts, and that no rank waits for the workers of another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <limits>
#include <set>
#include <thread>

#include "experience/reward/reward_runner.h"
#include "support/meeting_point.h"
#include "support/shared_handover.h"
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

TEST(SharedPrompts, FewRowsAreClaimedInPartsOfPrompts) {
  const auto claim = [](int64_t num_rows, int64_t n, bool may_cut) {
    const ClaimSize size = claim_size(num_rows, n, 2, 64, may_cut);
    return std::pair(size.parts, size.prompts);
  };
  EXPECT_EQ(claim(8192, 8, true), std::pair(1L, 8L)) << "as many rows as a worker takes at once";
  EXPECT_EQ(claim(1024, 8, true), std::pair(1L, 4L));
  EXPECT_EQ(claim(72, 8, true), std::pair(4L, 1L)) << "16 claims of each rank, if all have 2 rows";
  EXPECT_EQ(claim(72, 8, false), std::pair(1L, 1L)) << "a group is scored as a whole";
  EXPECT_EQ(claim(3, 8, true), std::pair(8L, 1L));
  EXPECT_EQ(cut_prompts({{4, 0}, {2}}, 2), (Lists{{8, 9, 0, 1}, {4, 5}}));
  std::vector<int64_t> rows;
  for (int64_t part = 9; part < 12; ++part) {
    const std::vector<int64_t> of_part = rows_of_part(part, 3, 8);
    EXPECT_GE(of_part.size(), 2U);
    rows.insert(rows.end(), of_part.begin(), of_part.end());
  }
  EXPECT_THAT(rows, ElementsAre(24, 25, 26, 27, 28, 29, 30, 31)) << "prompt 3";
}

TEST(SharedPrompts, RowsOfAPromptTravelAsRewardsReadThem) {
  SampleBatch samples;
  samples.num_samples_per_prompt = 2;
  for (int64_t row = 0; row < 6; ++row) {
    Sample& sample = samples.rows.emplace_back();
    sample.prompt_index = row / 2;
    sample.sample_index = row % 2;
    sample.token_ids = {row, 7};
    sample.log_prob = {-1.0F, -2.0F};
    sample.finish_reason = FinishReason::kLength;
    sample.text = "c" + std::to_string(row);
    sample.turns.num_assistant = 2;
    sample.turns.messages = "[]";
    sample.turns.is_sampled = {1, 0};
    sample.turns.rewards = {0.5, 0.0};
    sample.experts = {1, 2, 3};
  }
  SampleBatch other;
  other.num_samples_per_prompt = 2;
  other.rows.resize(6);
  const std::string bytes = encode_prompt_rows(samples, 1);
  EXPECT_LE(bytes.size(), most_bytes_of_rows(samples, 1));
  ASSERT_OK_AND_ASSIGN(const int64_t prompt, decode_prompt_rows(bytes, other));
  EXPECT_EQ(prompt, 1);
  EXPECT_EQ(other.rows[2].text, "c2");
  EXPECT_EQ(other.rows[3].token_ids, (std::vector<int64_t>{3, 7}));
  EXPECT_EQ(other.rows[3].finish_reason, FinishReason::kLength);
  EXPECT_EQ(other.rows[3].turns.num_assistant, 2);
  EXPECT_EQ(other.rows[3].turns.rewards, (std::vector<double>{0.5, 0.0}));
  EXPECT_TRUE(other.rows[3].log_prob.empty()) << "no reward reads them";
  EXPECT_TRUE(other.rows[3].experts.empty());
  EXPECT_TRUE(other.rows[1].text.empty() && other.rows[4].text.empty());
  EXPECT_FALSE(decode_prompt_rows(std::string_view(bytes).substr(0, bytes.size() - 1), other).ok());
  other.rows.resize(2);
  EXPECT_FALSE(decode_prompt_rows(bytes, other).ok()) << "the batch has one prompt";
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
  [[nodiscard]] bool has_free_worker() const override { return at_work_.empty(); }
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

// Two ranks of one batch of 6 prompts with 2 rows each. The worker of rank 0 is busy with its first prompt until rank 1 is
// done.
class TwoRanks : public testing::Test {
 protected:
  static constexpr int64_t kPrompts = 6;

  TwoRanks() {
    prompts_.prompts.resize(kPrompts);
    samples_.num_samples_per_prompt = 2;
    for (int64_t row = 0; row < 2 * kPrompts; ++row) samples_.rows.emplace_back().prompt_index = row / 2;
  }

  // Both sample, and then score the batch.
  void score(const std::function<void(int, RewardRunner&)>& sample) {
    std::vector<std::thread> threads;
    for (const int rank : {0, 1}) {
      threads.emplace_back([&, rank] {
        auto made = std::make_unique<OneWorker>(rank == 0, is_other_done_);
        const OneWorker& worker = *made;
        RewardSpec spec;
        spec.use = spec.label = "one";
        std::vector<std::unique_ptr<RewardFunction>> functions;
        functions.push_back(std::move(made));
        RewardRunner runner = RewardRunner::over({spec}, std::move(functions), 1.0);
        ScoreRanks ranks;
        ranks.rank = rank;
        ranks.size = 2;
        ranks.exchange = [&, rank](const std::string& own) { return point_.meet(rank, own); };
        ranks.share = [&, rank](Lists own) { return lists_.share(rank, std::move(own)); };
        ranks.hand_over = [&, rank] { return handover_.join(rank); };
        EXPECT_OK(runner.use_ranks(std::move(ranks)));
        EXPECT_OK(runner.begin(prompts_, 2, {.step = 1}));
        sample(rank, runner);
        const auto at = static_cast<size_t>(rank);
        auto done = runner.score(prompts_, samples_, {.step = 1}, &metrics_[at]);
        ASSERT_OK(done);
        all_[at] = *std::move(done);
        scored_[at] = worker.prompts;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(all_[0].rewards, all_[1].rewards);
    for (int64_t row = 0; row < 2 * kPrompts; ++row)
      EXPECT_EQ(all_[0].rewards[static_cast<size_t>(row)], 0.1 * static_cast<double>(row));
    EXPECT_DOUBLE_EQ(metrics_[0].value("one/sum").value(), 6.6);
    EXPECT_EQ(metrics_[0].value("one/sum"), metrics_[1].value("one/sum"));
  }
  void feed_all(RewardRunner& runner) const {
    for (int64_t prompt = 0; prompt < kPrompts; ++prompt) EXPECT_OK(runner.feed(prompts_, samples_, prompt));
  }

  PromptBatch prompts_;
  SampleBatch samples_;
  MeetingPoint point_{2};
  SharedLists lists_;
  SharedHandover handover_;
  std::atomic<bool> is_other_done_ = false;
  std::vector<std::vector<int64_t>> scored_{2};  // prompts by rank
  std::vector<ScoredBatch> all_{2};
  std::vector<MetricSet> metrics_{2};
};

// Rank 0 has sampled all prompts.
TEST_F(TwoRanks, ARankThatIsDoneScoresThePromptsOfABusyOne) {
  score([&](int rank, RewardRunner& runner) {
    if (rank == 0) feed_all(runner);
    EXPECT_EQ(runner.num_taken_over(), 0);
  });
  EXPECT_THAT(scored_[0], ElementsAre(0));
  // The 10 rows that are left are so few that they are claimed one by one.
  EXPECT_THAT(scored_[1], ElementsAre(5, 5, 4, 4, 3, 3, 2, 2, 1, 1));
}

// Rank 1 has rows of rank 0 before anybody has told what it sampled. It may have asked for one more than it takes.
TEST_F(TwoRanks, AFreeWorkerTakesPromptsWhileOthersAreSampled) {
  SampleBatch none;
  none.num_samples_per_prompt = 2;
  none.rows.resize(2 * kPrompts);
  score([&](int rank, RewardRunner& runner) {
    if (rank == 0) feed_all(runner);
    while (rank == 1 && runner.num_taken_over() < 3) ASSERT_OK(runner.tend(prompts_, none, 1));
    ASSERT_OK(point_.meet(rank, "", [&](int) { return rank == 0 && runner.tend(prompts_, samples_).ok(); }));
    EXPECT_EQ(runner.num_taken_over(), rank == 0 ? 0 : 3);
  });
  EXPECT_THAT(scored_[0], ElementsAre(0));
  const std::vector<int64_t> first(scored_[1].begin(), scored_[1].begin() + 3);
  EXPECT_THAT(first, ElementsAre(5, 4, 3)) << "those that would wait longest";
  EXPECT_EQ(std::set<int64_t>(scored_[1].begin(), scored_[1].end()), (std::set<int64_t>{1, 2, 3, 4, 5}));
}

// The last prompt is so large that it stays on its rank while rows are sampled.
TEST_F(TwoRanks, APromptThatIsTooLargeToTravelStays) {
  samples_.rows[2 * kPrompts - 1].text.assign(PromptHandover::kMaxBytes, 'x');
  SampleBatch none;
  none.num_samples_per_prompt = 2;
  none.rows.resize(2 * kPrompts);
  score([&](int rank, RewardRunner& runner) {
    if (rank == 0) feed_all(runner);
    while (rank == 1 && runner.num_taken_over() < 4) ASSERT_OK(runner.tend(prompts_, none, 1));
    ASSERT_OK(point_.meet(rank, "", [&](int) { return rank == 0 && runner.tend(prompts_, samples_).ok(); }));
  });
  EXPECT_THAT(std::vector<int64_t>(scored_[1].begin(), scored_[1].begin() + 4), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(scored_[1], testing::Contains(5)) << "when all are sampled";
}

}  // namespace
}  // namespace mortise::test
