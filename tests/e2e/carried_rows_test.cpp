// Updates whose size does not divide a step (actor.carry_rows), in whole runs: which updates there are, that neither
// ranks nor micro-batches change their numbers, and that a resume finds the rows that wait. More: run_table.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rank_runs.h"

namespace mortise::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A step has 16 rows, and an epoch 3 steps.
const std::vector<std::string> kOnePass{"actor.ppo_epochs=1", "actor.carry_rows=true"};

// The steps that updates belong to.
std::vector<int64_t> steps_of_updates(const Path& out) {
  std::vector<int64_t> steps;
  for (const Json& row : rows_of(out / "updates.jsonl")) steps.push_back(row["step"].get<int64_t>());
  return steps;
}

std::vector<int64_t> waiting_rows(const Path& out) {
  std::vector<int64_t> rows;
  for (const Json& row : rows_of(out / "metrics.jsonl"))
    rows.push_back(static_cast<int64_t>(number_of(row, "training/carried_rows")));
  return rows;
}

TEST(CarriedRows, UpdatesTakeTheNextRowsOfAllSteps) {
  const TinyTask task;
  const auto settings = joined(kOnePass, {"actor.rows_per_update=10", "trainer.total_training_steps=5"});
  const Json plan = dry_run_numbers(task, 1, settings);
  EXPECT_EQ(plan["updates"], 8);
  EXPECT_EQ(plan["updates_per_step"], 1.6);
  EXPECT_THAT(dry_run(task, 1, settings), HasSubstr("1.6 updates on average of 10 rows"));
  const Outcome done = task.mortise("train", "out", settings);
  ASSERT_EQ(done.code, 0) << done.output;
  EXPECT_THAT(steps_of_updates(task.path() / "out"), ElementsAre(1, 2, 2, 3, 3, 4, 5, 5)) << "the epoch ends with 8";
  EXPECT_THAT(waiting_rows(task.path() / "out"), ElementsAre(6, 2, 0, 6, 2));
}

TEST(CarriedRows, AnUpdateMayBeLargerThanAStep) {
  const TinyTask task;
  const Outcome done = task.mortise("train", "out",
                                    joined(kOnePass, {"actor.ppo_mini_batch_size=7", "trainer.total_training_steps=6",
                                                      "trainer.rollout_data_tokens=100"}));
  ASSERT_EQ(done.code, 0) << done.output;
  EXPECT_THAT(steps_of_updates(task.path() / "out"), ElementsAre(2, 3, 5, 6));
  EXPECT_THAT(waiting_rows(task.path() / "out"), ElementsAre(16, 4, 0, 16, 4, 0));
  for (const auto& [step, num_seen] : std::vector<std::pair<int, int>>{{1, 0}, {2, 12}, {3, 16}}) {
    int seen = 0;
    for (const Json& row : rows_of(task.path() / "out/dump" / (std::to_string(step) + ".jsonl")))
      seen += row["tokens"]["entropy"][0].is_number() ? 1 : 0;
    EXPECT_EQ(seen, num_seen) << "rows of step " << step << " that an update of it saw";
  }
}

TEST(CarriedRows, ARunOfSoManyUpdatesEndsWithTheLastOfThem) {
  const TinyTask task;
  for (const auto& [settings, steps] : std::vector<std::pair<std::vector<std::string>, std::vector<int64_t>>>{
           {joined(kOnePass, {"actor.rows_per_update=10"}), {1, 2, 2, 3}},
           {{"actor.ppo_epochs=1", "actor.rows_per_update=8"}, {1, 1, 2, 2}},
           {{"actor.ppo_epochs=1", "actor.rows_per_update=4"}, {1, 1, 1, 1}}}) {
    const Outcome done = task.mortise(
        "train", "out",
        joined(settings, {"trainer.total_training_updates=4", "~trainer.total_training_steps", "--resume", "never"}));
    ASSERT_EQ(done.code, 0) << done.output;
    EXPECT_EQ(steps_of_updates(task.path() / "out"), steps);
    EXPECT_TRUE(default_env().exists(task.path() / "out" / ("global_step_" + std::to_string(steps.back()))));
  }
}

// A smaller number ended the run inside step 2, whose last rows are not learnt. A larger one is reached all the same.
TEST(CarriedRows, ARaisedNumberOfUpdatesIsReached) {
  const TinyTask task;
  const auto updates = [&](int64_t count) {
    return task.mortise("train", "out",
                        joined(kOnePass, {"actor.rows_per_update=10", "~trainer.total_training_steps", "--allow-change",
                                          "trainer.total_training_updates=" + std::to_string(count)}));
  };
  ASSERT_EQ(updates(2).code, 0);
  EXPECT_THAT(steps_of_updates(task.path() / "out"), ElementsAre(1, 2));
  const Outcome more = updates(8);
  ASSERT_EQ(more.code, 0) << more.output;
  EXPECT_THAT(steps_of_updates(task.path() / "out"), ElementsAre(1, 2, 3, 3, 4, 5, 5, 6)) << "the epoch ends with 4";
  EXPECT_EQ(updates(8).code, 0);
  EXPECT_EQ(steps_of_updates(task.path() / "out").size(), 8U) << "it is over";
}

// A step of two updates: every second update is the end of a step. Inside a step the reference is another one later.
TEST(CarriedRows, TheReferenceIsRefreshedByUpdatesToo) {
  const TinyTask task;
  const std::vector<std::string> two{"actor.ppo_epochs=1", "actor.rows_per_update=8", "actor.use_kl_loss=true",
                                     "actor.kl_loss_coef=0.5", "trainer.total_training_steps=3"};
  const std::vector<std::string> inside{"ref.sync_unit=update", "ref.sync_steps=1"};
  ASSERT_EQ(task.mortise("train", "steps", joined(two, {"ref.sync_steps=1"})).code, 0);
  ASSERT_EQ(task.mortise("train", "updates", joined(two, {"ref.sync_unit=update", "ref.sync_steps=2"})).code, 0);
  expect_same_bits(bits_of_run(task.path() / "updates", 3), bits_of_run(task.path() / "steps", 3), "updates");
  ASSERT_EQ(task.mortise("train", "inside", joined(two, inside)).code, 0);
  const auto kl_of = [&](const char* out) {
    return number_of(rows_of(task.path() / out / "updates.jsonl").at(4), "kl");
  };
  EXPECT_NE(kl_of("inside"), kl_of("steps")) << "the third step compares with another reference";
}

TEST(CarriedRows, AResumeRefreshesAsOftenAndDrawsTheSameRows) {
  const TinyTask task;
  const auto settings =
      joined(kOnePass, {"actor.rows_per_update=10", "actor.use_kl_loss=true", "ref.sync_unit=update",
                        "ref.sync_steps=3", "trainer.total_training_steps=5", "trainer.max_actor_ckpt_to_keep=10"});
  ASSERT_EQ(task.mortise("train", "straight", settings).code, 0);
  expect_same_bits_from_every_step(task, settings, 5);
}

// The schedule ends with the last update: 8 of them, 3 of these warm up.
TEST(CarriedRows, TheScheduleCountsTheUpdates) {
  const TinyTask task;
  const Outcome done = task.mortise("train", "out",
                                    joined(kOnePass, {"actor.rows_per_update=10", "trainer.total_training_steps=5",
                                                      "actor.optim.lr_scheduler_type=linear", "actor.optim.lr=1"}));
  ASSERT_EQ(done.code, 0) << done.output;
  std::vector<double> rates;
  for (const Json& row : rows_of(task.path() / "out/updates.jsonl")) rates.push_back(row["lr"].get<double>());
  ASSERT_EQ(rates.size(), 8U);
  EXPECT_DOUBLE_EQ(rates[3], 1.0);
  EXPECT_DOUBLE_EQ(rates[7], 0.2) << "(8 - 7) / (8 - 3)";
}

TEST(CarriedRows, SizesThatDivideAreTheSameRunAsWithoutTheKey) {
  const TinyTask task;
  const std::vector<std::string> two{"trainer.total_training_steps=2"};
  ASSERT_EQ(task.mortise("train", "plain", two).code, 0);
  const Outcome done = task.mortise("train", "carried", joined(two, {"actor.carry_rows=true"}));
  ASSERT_EQ(done.code, 0);
  EXPECT_THAT(done.output, HasSubstr("the rows of an update divide those of a step"));
  expect_same_bits(bits_of_run(task.path() / "carried", 2), bits_of_run(task.path() / "plain", 2), "carried");
}

TEST(CarriedRows, AResumeFindsTheRowsThatWait) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"actor.rows_per_update=10"},
           {"actor.rows_per_update=40", "rollout.filtered_log_probs=true", "rollout.top_k=5"}}) {
    const TinyTask task;
    const auto settings =
        joined(more, {"actor.carry_rows=true", "trainer.total_training_steps=5", "trainer.max_actor_ckpt_to_keep=10"});
    ASSERT_EQ(task.mortise("train", "straight", settings).code, 0);
    expect_same_bits_from_every_step(task, settings, 5);
  }
}

// Rows that wait have no log-probs of a reference that is new, and none over the tokens that a filter keeps. Nor do those
// with such log-probs fit to rows without.
TEST(CarriedRows, RowsThatLackWhatChangedSettingsReadAreNotLearnt) {
  const std::vector<std::string> filtered{"rollout.filtered_log_probs=true", "rollout.top_k=5"};
  for (const auto& [before, after] : std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>>{
           {{"actor.use_kl_loss=false", "algorithm.use_kl_in_reward=false"}, {"actor.use_kl_loss=true"}},
           {{}, filtered},
           {filtered, {"rollout.top_k=5"}}}) {
    SCOPED_TRACE(after.front());
    const TinyTask task;
    const auto settings = joined(kOnePass, {"actor.rows_per_update=10"});
    ASSERT_EQ(task.mortise("train", "out", joined(until(1, settings), before)).code, 0);
    const Outcome done = task.mortise("train", "out", joined(joined(until(3, settings), after), {"--allow-change"}));
    ASSERT_EQ(done.code, 0) << done.output;
    EXPECT_THAT(done.output, HasSubstr("step 2 does not learn 6 rows that waited for it"));
    EXPECT_THAT(steps_of_updates(task.path() / "out"), ElementsAre(1, 2, 3, 3, 3));
    EXPECT_THAT(waiting_rows(task.path() / "out"), ElementsAre(6, 6, 0));
  }
}

// Token weights come from the counts of the whole update, also if its rows are of several steps.
TEST(CarriedRows, MicroBatchesAndRanksDoNotChangeTheNumbers) {
  for (const char* loss : {"vanilla", "gspo", "clip_cov"}) {
    const RunCase carried{
        "carried",
        "train",
        {"actor.rows_per_update=11", "actor.carry_rows=true", std::string("actor.policy_loss.loss_mode=") + loss}};
    expect_numbers_of_one_process(carried, {"actor.ppo_micro_batch_size_per_gpu=11"},
                                  {{"one_row", 1, {"actor.ppo_micro_batch_size_per_gpu=1"}},
                                   {"two_ranks", 2, {"actor.ppo_micro_batch_size_per_gpu=3"}}});
  }
}

TEST(CarriedRows, ACriticNeedsASizeOfItsOwn) {
  const TinyTask task;
  const std::vector<std::string> settings{"algorithm.adv_estimator=gae", "~algorithm.adv_params",
                                          "actor.rows_per_update=10", "actor.carry_rows=true"};
  expect_refused(task, 1, settings, "set critic.ppo_mini_batch_size to a divisor of data.train_batch_size");
  const Outcome done = task.mortise(
      "train", "out", joined(settings, {"critic.ppo_mini_batch_size=2", "trainer.total_training_steps=2"}));
  EXPECT_EQ(done.code, 0) << done.output;
}

}  // namespace
}  // namespace mortise::test
