// Packs in runs: another one under the same name is noticed, a folder that is not there too; a backend that holds the
// weights gets them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "program.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Packs, AResumeWithAnotherPackOfTheSameNameAsks) {
  const TaskFolder task;
  std::filesystem::create_directory(task.path() / "packs");
  const Path pack = task.path() / "packs/test.faulty.so";
  std::filesystem::copy_file(Path(MORTISE_BINARY_DIR) / "tests/packs/faulty/test.faulty.so", pack);
  const std::string train =
      "train run.toml plugins.paths='[\"packs\"]' reward.0.use=fussy '~reward.0.pattern' trainer.total_training_steps=";
  ASSERT_EQ(task.mortise(train + "1").code, 0);
  EXPECT_EQ(task.mortise(train + "2").code, 0) << "nothing has changed";
  std::ofstream(pack, std::ios::app) << "built again";
  const Outcome refused = task.mortise(train + "3");
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_THAT(refused.output,
              AllOf(HasSubstr("other settings or packs"), HasSubstr("pack test.faulty (reward fussy): 1.0.0 ("),
                    HasSubstr("--allow-change")));
  const Outcome allowed = task.mortise(train + "3 --allow-change");
  EXPECT_EQ(allowed.code, 0) << allowed.output;
  EXPECT_THAT(allowed.output, HasSubstr("the run continues with changed settings"));
  EXPECT_EQ(task.mortise(train + "4").code, 0) << "the lock has the new pack";
}

TEST(Packs, AFolderThatIsNotThereIsAnErrorInItsLine) {
  const TaskFolder task;
  std::string text = default_env().read_file(task.path() / "run.toml").value();
  task.write("run.toml", "[plugins]\npaths = [\"my_pakcs\"]\n" + text);
  const Outcome outcome = task.mortise("train run.toml");
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("run.toml:2:"), HasSubstr("'my_pakcs' does not exist"),
                                    HasSubstr("a relative path starts at " + task.path().string())));
}

TEST(Packs, AStraightThroughKlIsAPluginToo) {
  const TaskFolder task;
  const Outcome outcome = task.mortise(
      "train run.toml actor.use_kl_loss=true actor.kl_loss_type=k3+ "
      "trainer.total_training_steps=1");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(default_env().read_file(task.path() / "out/mortise.lock").value(), HasSubstr("\"name\": \"k3\""));
}

TEST(Packs, ABackendThatHoldsTheWeightsGetsThemAnewAfterEveryUpdate) {
  const TaskFolder task;
  const Outcome outcome = task.mortise(
      "train run.toml trainer.total_training_steps=2 rollout.name=holder "
      "rollout.sleep_while_training=true plugins.paths='[\"" +
      (Path(MORTISE_BINARY_DIR) / "tests/sdk_packs").string() + "\"]'");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("weights of version 0"), HasSubstr("weights of version 1"),
                                    HasSubstr("sleeps at level 2"), HasSubstr("is awake")));
  EXPECT_GT(rows_of(task.path() / "out/metrics.jsonl")[0]["timing_s/update_weights"].get<double>(), 0.0);
}

}  // namespace
}  // namespace mortise::test
