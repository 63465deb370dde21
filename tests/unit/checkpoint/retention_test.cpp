// Which checkpoints are deleted after a save, and which ones never are.
#include "checkpoint/retention.h"

#include <gmock/gmock.h>

#include "support/fault_env.h"
#include "unit/checkpoint/run_state.h"

namespace mortise {
namespace {

using test::fast_env;
using test::resumed_step;
using test::save_place;
using test::save_step;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Retention, KeepsTheNewest) {
  const test::TempDir dir;
  for (const int64_t step : {2, 4, 10, 100}) ASSERT_OK(save_step(fast_env(), dir.path(), step, {.keep_last = 2}));
  EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre("global_step_10", "global_step_100", "latest"));
}

TEST(Retention, KeepsAllByDefault) {
  const test::TempDir dir;
  for (const int64_t step : {2, 4, 10}) ASSERT_OK(save_step(fast_env(), dir.path(), step));
  EXPECT_EQ(list_checkpoints(default_env(), dir.path())->size(), 3u);
}

TEST(Retention, NeverTheOneJustSavedAndLaterStepsFirst) {
  const test::TempDir dir;
  for (const int64_t step : {20, 30, 10}) ASSERT_OK(save_step(fast_env(), dir.path(), step));
  ASSERT_OK(save_step(fast_env(), dir.path(), 15, {.keep_last = 2}));
  EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre("global_step_10", "global_step_15", "latest"));
}

// The best is kept next to the newest, does not count among them, and goes when another one is the best.
TEST(Retention, TheBestStays) {
  const test::TempDir dir;
  const CheckpointWriterOptions keep_one{.keep_last = 1};
  ASSERT_OK(save_step(fast_env(), dir.path(), 1, keep_one));
  dir.write("best", "global_step_1\n");
  for (const int64_t step : {2, 3}) ASSERT_OK(save_step(fast_env(), dir.path(), step, keep_one));
  EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre("best", "global_step_1", "global_step_3", "latest"));
  dir.write("best", "global_step_3\n");
  ASSERT_OK(save_step(fast_env(), dir.path(), 4, keep_one));
  EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre("best", "global_step_3", "global_step_4", "latest"));
  dir.write("best", "../elsewhere\n");  // no name of a checkpoint
  EXPECT_EQ(best_checkpoint(default_env(), dir.path()), Path());
}

// Inside a step only the newest is kept, and it never costs one between steps.
TEST(Retention, InsideAStepTheNewestAlone) {
  const test::TempDir dir;
  const CheckpointWriterOptions keep_two{.keep_last = 2};
  for (const int64_t step : {1, 2}) ASSERT_OK(save_step(fast_env(), dir.path(), step, keep_two));
  for (const int64_t update : {0, 1}) ASSERT_OK(save_place(fast_env(), dir.path(), {2, update}, keep_two));
  EXPECT_THAT(*default_env().list_dir(dir.path()),
              ElementsAre("global_step_1", "global_step_2", "latest", "unfinished_step_3_update_1"));
  EXPECT_EQ(dir.read("latest"), "unfinished_step_3_update_1\n");
  ASSERT_OK_AND_ASSIGN(const auto found, find_newest_valid(default_env(), dir.path()));
  EXPECT_EQ(found->ref.place, (CheckpointPlace{2, 1}));
  ASSERT_OK(save_step(fast_env(), dir.path(), 3, keep_two));
  EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre("global_step_2", "global_step_3", "latest"));
  // Also where all others are kept.
  ASSERT_OK(save_place(fast_env(), dir.path(), {3, 0}));
  ASSERT_OK(save_step(fast_env(), dir.path(), 4));
  EXPECT_THAT(*default_env().list_dir(dir.path()),
              ElementsAre("global_step_2", "global_step_3", "global_step_4", "latest"));
}

TEST(Retention, LeftoversOfKilledSavesGo) {
  const test::TempDir dir;
  dir.write(".tmp_global_step_9.abc/state.json", "half");
  dir.write(".deleting_global_step_1/manifest.json", "x");
  dir.write(".other", "not ours");
  ASSERT_OK(save_step(fast_env(), dir.path(), 5));
  EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre(".other", "global_step_5", "latest"));
}

// The old folder of a step counts until there is a complete new one.
TEST(Retention, AReplacedFolderIsTheFallBack) {
  const test::TempDir dir;
  ASSERT_OK(save_step(fast_env(), dir.path(), 5));
  ASSERT_OK(default_env().rename(dir / "global_step_5", dir / ".replaced_global_step_5"));
  EXPECT_EQ(resumed_step(default_env(), dir.path()), 5);
  dir.write("global_step_5/manifest.json", "damaged");
  EXPECT_EQ(resumed_step(default_env(), dir.path()), 5);
  ASSERT_OK(save_step(fast_env(), dir.path(), 5));
  EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre("global_step_5", "latest"));
}

TEST(Retention, AFailureToDeleteIsAWarning) {
  const test::TempDir dir;
  ASSERT_OK(save_step(fast_env(), dir.path(), 5));
  test::FaultEnv env(default_env());
  ASSERT_OK(save_step(env, dir.path(), 6, {.keep_last = 2}));  // counts the operations up to retention
  const int64_t before_retention = env.num_operations();
  bool warned = false;
  for (int64_t k = before_retention + 1; k < before_retention + 4 && !warned; ++k) {
    env.heal();
    env.fail_at(k);
    ASSERT_OK_AND_ASSIGN(const SavedCheckpoint saved, save_step(env, dir.path(), 6 + k, {.keep_last = 2}));
    for (const std::string& warning : saved.warnings)
      warned = warned || warning.find("could not delete an old checkpoint") != std::string::npos;
  }
  EXPECT_TRUE(warned);
}

}  // namespace
}  // namespace mortise
