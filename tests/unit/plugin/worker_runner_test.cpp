// Several rewards in workers at once: their scores, their failures, and a stop of the run. worker_time_test.cpp has their
// deadlines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "experience/advantage/advantage_runner.h"
#include "experience/reward/reward_runner.h"
#include "foundation/base/choice.h"
#include "support/meeting_point.h"
#include "support/shared_handover.h"
#include "support/shared_lists.h"
#include "support/this_build.h"
#include "worker_fixture.h"

namespace mortise::test {
namespace {

class WorkerRunner : public WorkerTest {
 protected:
  // A prompt for every completion.
  void take(const std::vector<std::string>& completions) {
    samples_.num_samples_per_prompt = 1;
    for (const std::string& text : completions) {
      Sample& sample = samples_.rows.emplace_back();
      sample.prompt_index = static_cast<int64_t>(prompts_.prompts.size());
      sample.text = text;
      prompts_.prompts.emplace_back();
    }
  }
  RewardRunner runner(const std::vector<RewardSpec>& specs) {
    IsolationOptions isolation;
    isolation.mode = Isolation::kProcess;
    isolation.num_workers = 1;
    auto made = RewardRunner::create(registry_, specs, RunKey{7, nullptr}, /*max_failed_fraction=*/1.0, isolation);
    if (!made.ok()) {
      ADD_FAILURE() << made.error().to_string();
      std::abort();
    }
    return std::move(made).value();
  }
  static RewardSpec spec(const std::string& use, int64_t timeout_ms, int64_t row_timeout_ms) {
    RewardSpec out;
    out.use = out.label = use;
    out.timeout_ms = timeout_ms;
    out.row_timeout_ms = row_timeout_ms;
    return out;
  }

  PromptBatch prompts_;
  SampleBatch samples_;
};

// Rows come prompt by prompt, faster than they are scored, as while other prompts are sampled.
TEST_F(WorkerRunner, DescriptorsDoNotGrowWithPromptsNorWithSteps) {
  constexpr int kPrompts = 2048;
  take(std::vector<std::string>(kPrompts, "abc"));
  auto three = runner({spec("plain", 0, 0), spec("faulty", 0, 0), spec("steps", 0, 0)});
  const size_t before = num_open_files();
  size_t after_first = 0;
  const int kSteps = kSanitized ? 4 : 20;
  for (int step = 1; step <= kSteps; ++step) {
    ASSERT_OK(three.begin(prompts_, 1, {.step = step}));
    for (int64_t prompt = 0; prompt < kPrompts; prompt += step == 1 ? 1 : 16)
      ASSERT_OK(three.feed(prompts_, samples_, prompt));
    EXPECT_LE(num_open_files(), before + 32) << "step " << step;
    ASSERT_OK_AND_ASSIGN(const ScoredBatch scored, three.score(prompts_, samples_, {.step = step}, nullptr));
    EXPECT_EQ(scored.columns[0].values, std::vector<double>(kPrompts, 3));
    if (step == 1) after_first = num_open_files();
  }
  EXPECT_EQ(num_open_files(), after_first);
}

TEST_F(WorkerRunner, TokenRewardsAreSummedInTheirPlaces) {
  take({"x", "nan", "huge", "x", "unset"});
  for (size_t i = 0; i < 4; ++i) samples_.rows[i].token_ids = {4, 8, static_cast<int64_t>(12 * (i + 1))};
  RewardSpec steps = spec("steps", 300'000, 120'000), plain = spec("plain", 300'000, 120'000);
  steps.weight = 2;
  auto both = runner({steps, plain});
  MetricSet metrics;
  ASSERT_OK_AND_ASSIGN(const ScoredBatch scored, both.score(prompts_, samples_, {}, &metrics));
  // Row 0: weight 2 for a reward of 1, for tokens of 1, 2 and 3, and for the length of its text.
  EXPECT_EQ(scored.columns[0].values[0], 1 + 1 + 2 + 3);
  EXPECT_EQ(scored.rewards[0], 2 * 7 + 1);
  ASSERT_EQ(scored.token_scores.size(), 5U);
  EXPECT_THAT(scored.token_scores[0], testing::ElementsAre(2, 4, 6 + 2 + 1));
  EXPECT_EQ(scored.columns[0].num_failed, 2);
  EXPECT_THAT(scored.columns[0].error(1), testing::StartsWith("gave the token reward nan"));
  EXPECT_EQ(scored.rewards[1], 3);  // what the other function gives
  EXPECT_EQ(scored.rewards[2], 4) << "1e30 is no number to sum";
  EXPECT_EQ(scored.rewards[4], 5) << "no tokens, so none of no reward";

  ASSERT_OK_AND_ASSIGN(AdvantageRunner advantage, AdvantageRunner::create(registry_, "echo", Json::object(), {}));
  samples_.rows[3].finish_reason = FinishReason::kAbort;
  StepTable table = make_step_table(prompts_, samples_);
  ASSERT_OK(advantage.compute(table, samples_, scored, {}, {}, nullptr));
  EXPECT_THAT(table.get<column::TokenLevelScores>(), testing::ElementsAre(2, 4, 9, 0, 0, 3, 0, 0, 4, 0, 0, 0));
  EXPECT_THAT(table.get<column::Advantages>(), testing::ElementsAre(2, 4, 9, 0, 0, 3, 0, 0, 4, 0, 0, 0));
}

// What `size` ranks make of the batch together; the outcome of each. The rows of every second prompt are given while
// others are sampled, to one rank after another, and free workers take some of them. One rank gets all at once.
std::vector<ScoredBatch> scored_by_ranks(PluginRegistry& registry, const std::vector<RewardSpec>& specs, Isolation mode,
                                         const PromptBatch& prompts, const SampleBatch& samples,
                                         std::vector<MetricSet>& metrics) {
  const size_t size = metrics.size();
  IsolationOptions isolation;
  isolation.mode = mode;
  isolation.num_workers = 1;
  MeetingPoint point(static_cast<int>(size));
  SharedLists lists;
  SharedHandover handover;
  std::vector<RewardRunner> runners;
  for (size_t rank = 0; rank < size; ++rank) {
    runners.push_back(RewardRunner::create(registry, specs, RunKey{7, nullptr}, 1.0, isolation).value());
    ScoreRanks ranks;
    ranks.rank = static_cast<int>(rank);
    ranks.size = static_cast<int>(size);
    ranks.exchange = [&point, rank](const std::string& own) { return point.meet(static_cast<int>(rank), own); };
    ranks.share = [&lists, rank](std::vector<std::vector<int64_t>> own) {
      return lists.share(static_cast<int>(rank), std::move(own));
    };
    ranks.hand_over = [&handover, rank] { return handover.join(static_cast<int>(rank)); };
    EXPECT_OK(runners.back().use_ranks(std::move(ranks)));
  }
  std::vector<ScoredBatch> out(size);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      RewardRunner& runner = runners[rank];
      const ScoreContext context{.step = 3};
      EXPECT_OK(runner.begin(prompts, samples.num_samples_per_prompt, context));
      for (size_t prompt = 2 * rank; size > 1 && prompt < prompts.prompts.size(); prompt += 2 * size)
        EXPECT_OK(runner.feed(prompts, samples, static_cast<int64_t>(prompt)));
      for (int turn = 0; size > 1 && turn < 10; ++turn) EXPECT_OK(runner.tend(prompts, samples, 1));
      EXPECT_OK(point.meet(static_cast<int>(rank), "", [&](int) { return runner.tend(prompts, samples).ok(); }));
      auto scored = runner.score(prompts, samples, context, &metrics[rank]);
      EXPECT_OK(scored);
      if (scored.ok()) out[rank] = *std::move(scored);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return out;
}

// Random numbers of rows, failures, tokens, values of rows and metrics; state and whole batches as well, which only rank
// 0 scores.
TEST_F(WorkerRunner, RanksThatShareABatchGetTheScoresOfOne) {
  const std::vector<std::string> texts{"x", "nan", "none", "abc", "ab", "inf", "abcd", "x", "", "abcde", "a", "ab"};
  samples_.num_samples_per_prompt = 2;
  for (size_t i = 0; i < texts.size(); ++i) {
    Sample& sample = samples_.rows.emplace_back();
    sample.prompt_index = static_cast<int64_t>(i / 2);
    sample.sample_index = static_cast<int64_t>(i % 2);
    sample.text = texts[i];
    sample.token_ids = {4, 8, static_cast<int64_t>(4 * i)};
  }
  prompts_.prompts.resize(texts.size() / 2);
  std::vector<RewardSpec> specs;
  for (const char* name : {"faulty", "steps", "whole_group", "whole_batch", "counter"})
    specs.push_back(spec(name, 300'000, 120'000));
  for (const Isolation mode : {Isolation::kNone, Isolation::kProcess}) {
    std::vector<MetricSet> one_metrics(1);
    const ScoredBatch one = scored_by_ranks(registry_, specs, mode, prompts_, samples_, one_metrics)[0];
    ASSERT_EQ(one.columns.size(), specs.size());
    EXPECT_EQ(one.columns[0].num_failed, 1);
    EXPECT_EQ(one.columns[1].num_failed, 1);
    EXPECT_EQ(one.columns[3].values[0], static_cast<double>(texts.size())) << "the batch was not whole";
    for (const size_t size : {2U, 3U, 8U}) {  // with 8 ranks two have no prompt
      SCOPED_TRACE(size);
      std::vector<MetricSet> metrics(size);
      for (const ScoredBatch& scored : scored_by_ranks(registry_, specs, mode, prompts_, samples_, metrics)) {
        for (size_t k = 0; k < specs.size(); ++k) {
          const RewardColumn &column = scored.columns[k], &expected = one.columns[k];
          EXPECT_EQ(column.num_failed, expected.num_failed);
          EXPECT_EQ(column.errors, expected.errors);
          for (size_t i = 0; i < texts.size(); ++i) {
            EXPECT_THAT(column.values[i], testing::NanSensitiveDoubleEq(expected.values[i])) << specs[k].use << i;
          }
          ASSERT_EQ(column.extra.size(), expected.extra.size());
          for (const auto& [name, values] : expected.extra)
            EXPECT_THAT(column.extra.at(name), testing::Pointwise(testing::NanSensitiveDoubleEq(), values)) << name;
        }
        EXPECT_EQ(scored.token_scores, one.token_scores);
        EXPECT_EQ(scored.row_valid, one.row_valid);
      }
      for (const MetricSet& set : metrics) EXPECT_EQ(set.value("faulty/length"), one_metrics[0].value("faulty/length"));
    }
  }
}

// Each failed row keeps its own reason, in short; the log has the first row of each.
TEST_F(WorkerRunner, EveryFailedRowHasItsReason) {
  take({"crash", "ab", "throw", "none", "crash", "inf"});
  auto one = runner({spec("faulty", 300'000, 120'000)});
  testing::internal::CaptureStderr();
  ASSERT_OK_AND_ASSIGN(const ScoredBatch scored, one.score(prompts_, samples_, {.step = 4}, nullptr));
  const std::string log = testing::internal::GetCapturedStderr();
  const RewardColumn& column = scored.columns[0];
  EXPECT_EQ(column.num_failed, 4);
  ASSERT_EQ(column.errors.size(), 6U);
  // Sanitizers catch the signal and end the process themselves.
  const std::string end = kSanitized ? "exit code" : "signal 11 (Segmentation fault)";
  EXPECT_THAT(column.errors[0], testing::StartsWith("its worker was ended by " + end));
  EXPECT_EQ(column.errors[1], "");
  EXPECT_EQ(column.errors[2], "cannot parse (INVALID_ARGUMENT)");
  EXPECT_EQ(column.errors[3], "") << "it does not apply";
  EXPECT_EQ(column.errors[4], column.errors[0]);
  EXPECT_THAT(column.errors[5], testing::StartsWith("gave the reward inf; a reward is a number"));
  EXPECT_THAT(log,
              testing::ContainsRegex("reward faulty@test[.]faulty 1[.]0[.]0 [(][0-9a-f]+[)], step 4: reward 'faulty' "
                                     "failed on 4 of 6 rows; first: row 0: its worker was ended by .* while it "
                                     "scored the row; row 2: cannot parse .INVALID_ARGUMENT.; row 5: gave"));
}

TEST_F(WorkerRunner, TooManyFailuresAreAnErrorWithReasonsThatAreShort) {
  take({"throw", "ab"});
  RewardSpec long_words = spec("long_words", 300'000, 120'000);
  IsolationOptions isolation;
  isolation.mode = Isolation::kNone;
  ScoreContext validation;
  validation.is_validation = true;
  validation.step = 2;
  for (const double limit : {0.4, 0.5}) {
    auto made = RewardRunner::create(registry_, {long_words}, RunKey{7, nullptr}, limit, isolation);
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    const auto scored = made->score(prompts_, samples_, validation, nullptr);
    if (limit == 0.5) {
      ASSERT_TRUE(scored.ok()) << scored.error().to_string();
      const std::string& error = scored->columns[0].errors[0];
      EXPECT_EQ(error.size(), 199U) << "200 would cut an \u00e9";
      EXPECT_THAT(error, testing::EndsWith("\u00e9..."));
      continue;
    }
    ASSERT_FALSE(scored.ok());
    EXPECT_EQ(scored.error().kind, ErrorKind::kReward);
    EXPECT_THAT(scored.error().to_string(),
                testing::HasSubstr("), validation after step 2: reward 'long_words' failed on 1 of 2 rows"));
    EXPECT_THAT(scored.error().to_string(), testing::EndsWith("raise plugins.max_failed_fraction = 0.4"));
  }
}

// Whoever keeps the rows has those of every function, also of those behind the one that stops the run.
TEST_F(WorkerRunner, ABatchThatEndsTheRunIsHandedOverWhole) {
  take({"throw", "ab"});
  RewardSpec long_words = spec("long_words", 300'000, 120'000), second = long_words;
  second.label = "second";
  IsolationOptions isolation;
  isolation.mode = Isolation::kNone;
  auto made = RewardRunner::create(registry_, {long_words, second}, RunKey{7, nullptr}, 0.0, isolation);
  ASSERT_TRUE(made.ok()) << made.error().to_string();
  ScoredBatch kept;
  Result<std::optional<Path>> answer = std::optional<Path>("some/1.jsonl");
  made->keep_failed_batches([&](const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                                const ScoreContext& context) {
    EXPECT_EQ(&prompts, &prompts_);
    EXPECT_EQ(&samples, &samples_);
    EXPECT_EQ(context.step, 5);
    kept = scored;
    return answer;
  });
  ScoreContext context;
  context.step = 5;
  const auto stopped = [&] { return made->score(prompts_, samples_, context, nullptr).error().to_string(); };
  EXPECT_THAT(stopped(), testing::EndsWith("= 0; the rows, each with its reason, are in some/1.jsonl"));
  ASSERT_EQ(kept.columns.size(), 2U);
  for (const RewardColumn& column : kept.columns) {
    EXPECT_NE(column.error(0), "") << column.name;
    EXPECT_EQ(column.error(1), "") << column.name;
  }
  EXPECT_THAT(kept.row_valid, testing::ElementsAre(0, 1));
  for (const Result<std::optional<Path>>& other :
       {Result<std::optional<Path>>(std::optional<Path>()), Result<std::optional<Path>>(Error{})}) {
    answer = other;
    EXPECT_THAT(stopped(), testing::EndsWith("raise plugins.max_failed_fraction = 0"));
  }
}

TEST_F(WorkerRunner, AStopOfTheRunIsNoFailureOfItsRewards) {
  take({"polite", "polite", "polite"});
  std::atomic<bool> stopping = false;
  for (const Isolation mode : {Isolation::kProcess, Isolation::kNone}) {
    const TempDir dir;
    RewardSpec faulty = spec("faulty", 0, 0);
    faulty.params = Json{{"mark", (dir / "begun").string()}};
    IsolationOptions isolation;
    isolation.mode = mode;
    isolation.num_workers = 1;
    stopping = false;
    auto made = RewardRunner::create(registry_, {faulty}, RunKey{7, &stopping},
                                     /*max_failed_fraction=*/0.0, isolation);
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    std::thread stop([&] {
      wait_for_file(dir / "begun");
      stopping = true;
    });
    const auto scored = made->score(prompts_, samples_, {}, nullptr);
    stop.join();
    ASSERT_FALSE(scored.ok()) << choice_name(mode);
    EXPECT_EQ(scored.error().kind, ErrorKind::kSignal) << scored.error().to_string();
  }
}

TEST_F(WorkerRunner, ARewardThatCannotBeMadeIsAnErrorInItsLine) {
  RewardSpec bad = spec("faulty", 300'000, 120'000);
  bad.where = "run.toml:7:1";
  bad.params = Json{{"dies_in_create", 2}};
  for (const Isolation mode : {Isolation::kProcess, Isolation::kNone}) {
    IsolationOptions isolation;
    isolation.mode = mode;
    const auto made = RewardRunner::create(registry_, {spec("plain", 0, 0), bad}, {}, 1.0, isolation);
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.error().to_string(),
                testing::AllOf(testing::StartsWith("run.toml:7:1, reward faulty@test.faulty 1.0.0 ("),
                               testing::HasSubstr("no such judge (NOT_FOUND)")));
  }
}

}  // namespace
}  // namespace mortise::test
