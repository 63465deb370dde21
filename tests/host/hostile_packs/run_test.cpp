// Hostile plugins in whole runs: the program names them and ends with exit code 4, and a resume loses one step at most.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "drive.h"
#include "e2e/program.h"

namespace mortise::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

const Misdeed& misdeed_named(std::string_view name) {
  for (const Misdeed& misdeed : kMisdeeds) {
    if (misdeed.name == name) return misdeed;
  }
  ADD_FAILURE() << name;
  return kMisdeeds[0];
}

// A task with a hostile pack, which misbehaves at step 3 of 4. Each step saves.
class HostileRuns : public testing::Test {
 protected:
  Outcome train(std::string_view misdeed, const std::string& settings) {
    EXPECT_EQ(build_pack(misdeed_named(misdeed), task_.path()), "");
    return task_.mortise("train run.toml trainer.total_training_steps=4 trainer.save_freq=1 plugins.files='[\"" +
                         std::string(misdeed) + ".so\"]' " + settings);
  }
  void expect_named(const Outcome& outcome, const std::string& call, std::string_view what) const {
    EXPECT_EQ(outcome.code, 4) << outcome.output;
    const std::string line =
        "error:? " + call + ", step 3: " + (what == "crash" ? "its code was ended by signal 11" : std::string(what));
    EXPECT_THAT(outcome.output, ContainsRegex(line));
    EXPECT_THAT(default_env().read_file(task_.path() / "out/log.txt").value(), ContainsRegex(line));
    EXPECT_TRUE(default_env().exists(task_.path() / "out/global_step_2")) << "step 2 was saved";
  }
  TaskFolder task_;
};

constexpr const char* kWho = " hostile@test[.]hostile 1[.]0[.]0 [(][0-9a-f]{12}[)], ";

TEST_F(HostileRuns, ACrashLosesItsStep) {
  const std::string use = "actor.policy_loss.loss_mode=hostile actor.policy_loss.at_step=";
  expect_named(train("crash", use + "3"), std::string("policy_loss") + kWho + "compute", "crash");
  const Outcome resumed = train("crash", use + "1000 --allow-change");
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(rows_of(task_.path() / "out/metrics.jsonl").size(), 4U);
}

TEST_F(HostileRuns, AHangEndsAfterItsLimit) {
  expect_named(
      train("endless_loop", "plugins.call_timeout=5s algorithm.adv_estimator=hostile algorithm.adv_params.at_step=3"),
      std::string("advantage_estimator") + kWho + "compute", "it still runs after its limit of 5000 ms");
}

TEST_F(HostileRuns, AnExitIsNoSuccess) {
  expect_named(train("exit_at_once", "rollout.name=hostile rollout.hostile.at_step=3"),
               std::string("rollout_backend") + kWho + "poll", "it called _exit[(]0[)]");
}

// In a worker, the trainer outlives its plugin and saves the finished steps, however seldom it saves otherwise.
TEST_F(HostileRuns, AnIsolatedCrashLosesNoFinishedStep) {
  const std::string use =
      "trainer.save_freq=-1 actor.policy_loss.isolation=process actor.policy_loss.loss_mode=hostile "
      "actor.policy_loss.at_step=";
  const Outcome crashed = train("crash", use + "3");
  expect_named(crashed, std::string("policy_loss") + kWho + "compute",
               "its code was ended by signal 11 [(]Segmentation fault[)], 2 times in a row");
  EXPECT_THAT(crashed.output, HasSubstr("the call is made once more in a new worker"));
  const Outcome resumed = train("crash", use + "1000 --allow-change");
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("after step 2\n"));
  EXPECT_EQ(rows_of(task_.path() / "out/metrics.jsonl").size(), 4U);
}

TEST_F(HostileRuns, AnIsolatedHangEndsAsAnError) {
  const Outcome hung = train("hang",
                             "trainer.save_freq=-1 plugins.call_timeout=5s algorithm.adv_isolation=process "
                             "algorithm.adv_estimator=hostile algorithm.adv_params.at_step=3");
  expect_named(hung, std::string("advantage_estimator") + kWho + "compute",
               "it still runs after its limit of 5000 ms [(]plugins.call_timeout[)]; its worker was ended");
}

TEST_F(HostileRuns, LookingAtAPackRunsNothingOfIt) {
  ASSERT_EQ(build_pack(misdeed_named("crash_in_open"), task_.path()), "");
  for (const std::string command : {"plugin list --plugin", "plugin describe hostile --kind reward --plugin"}) {
    const Outcome outcome =
        run("MORTISE_TEST_MARK=mark " + program() + " " + command + " crash_in_open.so", task_.path());
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("hostile"));
  }
  EXPECT_FALSE(default_env().exists(task_.path() / "mark"));
}

class HostileEnds : public HostileRuns {
 protected:
  Outcome check(std::string_view misdeed) const {
    Misdeed at_the_end = misdeed_named("abort");
    at_the_end.name = misdeed;
    EXPECT_EQ(build_pack(at_the_end, task_.path()), "");
    return task_.mortise("plugin check " + std::string(misdeed) + ".so --only load.opens --timeout 30s");
  }
};

// The program ends without the destructors of libtorch, but not without those of packs.
TEST_F(HostileEnds, APackThatCrashesAtTheEndOfTheProcessFailsItsCheck) {
  const Outcome checked = check("abort_at_the_end");
  EXPECT_EQ(checked.code, 4) << checked.output;
  EXPECT_THAT(checked.output, HasSubstr("CRASHED  load.opens (R14): the process ended by SIGABRT"));
}

// What the program has still to write is written without the locks of streams that threads hold.
TEST_F(HostileEnds, AThreadThatReadsAStreamKeepsNoProgramAlive) {
  const Outcome checked = check("reads_at_the_end");
  EXPECT_EQ(checked.code, 0) << checked.output;
}

}  // namespace
}  // namespace mortise::test
