#include "checkpoint/retention.h"

#include <gmock/gmock.h>

#include "support/fault_env.h"
#include "unit/checkpoint/run_state.h"

namespace mortise {
namespace {

using test::fast_env;
using test::resumed_step;
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

TEST(Retention, LeftoversOfKilledSavesGo) {
  const test::TempDir dir;
  dir.write(".tmp_global_step_9.abc/state.json", "half");
  dir.write(".deleting_global_step_1/manifest.json", "x");
  dir.write(".other", "not ours");
  ASSERT_OK(save_step(fast_env(), dir.path(), 5));
  EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre(".other", "global_step_5", "latest"));
}

// The old folder of a step counts as long as no whole new one stands.
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
