// The queue from which ranks take prompts: each prompt once, and those of a rank that is busy go to the others.
#include "train/sampling/prompt_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include "support/thread_ranks.h"
#include "train/sampling/shared_rollout.h"
#include "unit/experience/char_folder.h"
#include "unit/plugin/test_packs.h"

namespace mortise {
namespace {

using test::on_ranks;

std::vector<int64_t> take_all(PromptQueue& queue) {
  while (queue.next().value()) {
  }
  return {queue.taken().begin(), queue.taken().end()};
}

TEST(PromptQueue, OthersTakeThePromptsOfABusyRank) {
  for (const int64_t num_prompts : {3, 10, 31}) {
    std::vector<std::vector<int64_t>> taken(3);
    on_ranks(3, [&](Communicator& ranks) {
      for (int round = 0; round < 2; ++round) {  // counters begin again
        PromptQueue queue(ranks, num_prompts, false, 0);
        const auto rank = static_cast<size_t>(ranks.rank());
        if (rank == 0) {
          ASSERT_TRUE(queue.next().value().has_value());
        }
        ASSERT_OK(ranks.barrier("test"));
        if (rank > 0) take_all(queue);
        taken[rank] = {queue.taken().begin(), queue.taken().end()};
        ASSERT_OK(ranks.barrier("test"));
        ASSERT_OK(queue.close());
        ASSERT_OK(ranks.barrier("test"));
      }
    });
    std::multiset<int64_t> all;
    for (const std::vector<int64_t>& one : taken) all.insert(one.begin(), one.end());
    EXPECT_EQ(all.size(), static_cast<size_t>(num_prompts));
    EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), all.size());
    EXPECT_EQ(*all.begin(), 0);
    EXPECT_EQ(*all.rbegin(), num_prompts - 1);
    EXPECT_EQ(taken[0], std::vector<int64_t>{0});
  }
}

TEST(PromptQueue, RanksKeepTheirBlocksIfAllFitAtOnce) {
  std::vector<std::vector<int64_t>> taken(3);
  const size_t num_sent = on_ranks(3, [&](Communicator& ranks) {
    PromptQueue queue(ranks, 8, false, 3);
    EXPECT_FALSE(queue.is_shared());
    taken[static_cast<size_t>(ranks.rank())] = take_all(queue);
    ASSERT_OK(queue.close());
  });
  EXPECT_EQ(num_sent, 0U);
  EXPECT_EQ(taken, (std::vector<std::vector<int64_t>>{{0, 1}, {2, 3, 4}, {5, 6, 7}}));
}

// Ranks that sample together get the same prompts in the same order, whoever asks first.
TEST(PromptQueue, RanksOfAGroupTakeTheSamePrompts) {
  for (const int64_t at_once : {1, 100}) {
    std::vector<std::vector<int64_t>> taken(4);
    on_ranks(4, [&](Communicator& ranks) {
      PromptQueue queue(ranks, 9, false, at_once, 2);
      EXPECT_EQ(queue.is_shared(), at_once == 1);
      taken[static_cast<size_t>(ranks.rank())] = take_all(queue);
      ASSERT_OK(ranks.barrier("test"));
      ASSERT_OK(queue.close());
    });
    EXPECT_EQ(taken[0], taken[1]);
    EXPECT_EQ(taken[2], taken[3]);
    std::vector<int64_t> all = taken[0];
    all.insert(all.end(), taken[2].begin(), taken[2].end());
    std::ranges::sort(all);
    EXPECT_EQ(all, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  }
}

TEST(PromptQueue, RankZeroMayHaveAllPrompts) {
  on_ranks(2, [&](Communicator& ranks) {
    PromptQueue queue(ranks, 5, true, 1);
    EXPECT_EQ(take_all(queue).size(), ranks.is_main() ? 5U : 0U);
  });
}

// Rank 0 is busy with its first prompt until rank 1 has sampled all that it can get.
class UnequalRank : public test::ThreadRank {
 public:
  struct Place {
    std::atomic<bool> has_begun = false, is_done = false;
  };
  UnequalRank(test::MeetingPoint& point, int rank, Place& place) : ThreadRank(point, rank, 2), place_(&place) {}

  Result<int64_t> add_to_counter(const std::string& counter, int64_t amount, std::string_view stage) override {
    if (rank() == 1) place_->has_begun.wait(false);
    Result<int64_t> before = ThreadRank::add_to_counter(counter, amount, stage);
    if (rank() == 0) set(place_->has_begun);
    return before;
  }
  Result<> check(std::string_view) override {
    if (rank() == 0) place_->is_done.wait(false);
    return {};
  }
  Result<std::vector<std::string>> exchange(const std::string& bytes, std::string_view stage,
                                            const Meanwhile& meanwhile) override {
    if (rank() == 1) set(place_->is_done);
    return ThreadRank::exchange(bytes, stage, meanwhile);
  }

 private:
  static void set(std::atomic<bool>& flag) {
    flag = true;
    flag.notify_all();
  }
  Place* place_;
};

// Two batches, of which one has rows that are done, and rows in pieces.
class SharedPieces : public testing::Test {
 protected:
  static constexpr int64_t kBetween = 999;  // after each completion in a prompt of the simulated backend

  struct Batch {
    PromptBatch prompts;
    SampleBatch samples;
    std::vector<uint8_t> is_done;
  };
  Batch batch(int64_t num_prompts, const RolloutPlan& plan) const {
    Batch out;
    out.prompts.step = 1;
    for (int64_t i = 0; i < num_prompts; ++i)
      out.prompts.prompts.emplace_back().token_ids = {3 + i, 1, kBetween, 4 + i, 1, kBetween};
    out.samples = unsampled_rows(out.prompts, plan);
    out.is_done.assign(out.samples.rows.size(), 0);
    return out;
  }
  std::vector<Batch> sample(Communicator& group, int64_t max_num_seqs) const {
    RolloutPlan plan;
    plan.num_samples = 2;
    plan.sampling.max_new_tokens = 8;
    PluginRegistry registry = test::open_registry({"sim_rollout"});
    RolloutRunner runner = RolloutRunner::create(registry, "sim", Json{{"slowest", 0}}, RunKey()).value();
    EXPECT_OK(runner.set_version(group.rank()));
    RolloutConfig config;
    config.max_num_seqs = max_num_seqs;
    std::vector<Batch> batches{batch(2, plan), batch(5, plan)};
    std::vector<OpenRows> open;
    for (Batch& one : batches) open.push_back({&one.prompts, &one.samples, &one.is_done, 0, 8});
    std::fill_n(batches[1].is_done.begin(), 2, uint8_t{1});
    MetricSet metrics;
    RoundRanks ranks(group);
    const Tokenizer tokenizer = folder_.tokenizer();
    EXPECT_OK(collect_segments_on_ranks(ranks, runner, open, plan, config, tokenizer, metrics));
    return batches;
  }
  // By the rank that sampled them; every row is done, with its tokens.
  static std::vector<int64_t> count_rows(const std::vector<Batch>& batches) {
    std::vector<int64_t> rows(2, 0);
    for (const Batch& one : batches) {
      for (size_t i = 0; i < one.is_done.size(); ++i) {
        const Sample& sample = one.samples.rows[i];
        EXPECT_EQ(one.is_done[i], 1);
        if (&one == &batches[1] && i < 2) {
          EXPECT_TRUE(sample.token_ids.empty()) << "the row was done";
          continue;
        }
        EXPECT_EQ(sample.token_ids, (std::vector<int64_t>{3 + sample.prompt_index + sample.sample_index, 1}));
        ++rows[static_cast<size_t>(sample.weight_version)];
      }
    }
    return rows;
  }

  test::CharFolder folder_;
};

// A reward fails while its rank waits for the others: these hear of it and end too, without rounds next to updates.
TEST_F(SharedPieces, AnErrorOfARankThatWaitsEndsTheOthers) {
  const Error lost{ErrorKind::kPlugin, "the fork server has ended", "reward", ""};
  std::atomic<bool> has_failed = false;
  on_ranks(2, [&](Communicator& group) {
    RolloutPlan plan;
    plan.num_samples = 2;
    plan.sampling.max_new_tokens = 8;
    PluginRegistry registry = test::open_registry({"sim_rollout"});
    RolloutRunner runner = RolloutRunner::create(registry, "sim", Json{{"slowest", 0}}, RunKey()).value();
    const Batch one = batch(4, plan);
    const auto on_turn = [&](const SampleBatch&, int wait_ms) -> Result<> {
      if (group.rank() == 1) has_failed.wait(false);
      if (group.rank() == 1 || wait_ms == 0) return {};
      has_failed = true;
      has_failed.notify_all();
      return lost;
    };
    RoundRanks ranks(group);
    const Tokenizer tokenizer = folder_.tokenizer();
    const auto samples =
        collect_on_ranks(ranks, runner, one.prompts, plan, RolloutConfig(), tokenizer, nullptr, {}, on_turn);
    ASSERT_FALSE(samples.ok());
    EXPECT_EQ(samples.error().what, lost.what);
  });
}

TEST_F(SharedPieces, OthersSampleTheRowsOfABusyRank) {
  for (const int64_t max_num_seqs : {1, 64}) {
    test::MeetingPoint point(2);
    UnequalRank::Place place;
    std::vector<std::vector<int64_t>> rows(2);
    std::vector<std::thread> threads;
    for (const int rank : {0, 1}) {
      threads.emplace_back([&, rank] {
        at::set_num_threads(1);
        UnequalRank communicator(point, rank, place);
        rows[static_cast<size_t>(rank)] = count_rows(sample(communicator, max_num_seqs));
      });
    }
    for (std::thread& thread : threads) thread.join();
    // 6 prompts of 2 rows: rank 0 has its first one, or its block if all of it is out at once.
    EXPECT_EQ(rows[0], (max_num_seqs == 1 ? std::vector<int64_t>{2, 10} : std::vector<int64_t>{6, 6}));
    EXPECT_EQ(rows[0], rows[1]);
  }
}

}  // namespace
}  // namespace mortise
