// Runs whose loss and estimators are in workers: the same trajectory as without, across a resume too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run_table.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

constexpr int64_t kLastStep = 4;

// One of the plugins has state (TinyTask's bnpo).
std::vector<std::string> all_in(const std::string& isolation) {
  std::vector<std::string> all = with_isolation(isolation);
  all.insert(all.end(), {"trainer.total_training_steps=4", "trainer.max_actor_ckpt_to_keep=null"});
  return all;
}

TEST(Isolation, TheTrajectoryIsTheSameAndSurvivesAResume) {
  const TinyTask task;
  const Outcome here = task.mortise("train", "here", all_in("none"));
  ASSERT_EQ(here.code, 0) << here.output;
  const auto expected = bits_of_run(task.path() / "here", kLastStep);
  const Outcome apart = task.mortise("train", "apart", all_in("process"));
  ASSERT_EQ(apart.code, 0) << apart.output;
  for (const char* kind : {"policy_loss ", "kl_estimator ", "advantage_estimator "})
    EXPECT_THAT(apart.output, testing::ContainsRegex(std::string(kind) + "[^\n]*: runs in a worker"));
  expect_same_bits(bits_of_run(task.path() / "apart", kLastStep), expected, "in workers");

  // A checkpoint does not depend on where the plugins ran.
  for (const auto& [from, to] : {std::pair("apart", "process"), {"apart", "none"}, {"here", "process"}}) {
    const std::string name = std::string(from) + "_then_" + to;
    cut_back(task.path() / from, task.path() / name, 2, kLastStep);
    const Outcome resumed = task.mortise("train", name, all_in(to));
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    EXPECT_THAT(resumed.output, HasSubstr("after step 2\n"));
    expect_same_bits(bits_of_run(task.path() / name, kLastStep), expected, name);
  }
}

}  // namespace
}  // namespace mortise::test
