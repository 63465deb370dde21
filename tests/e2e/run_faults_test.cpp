// A disk that fails under a whole run, at every k-th of its operations: what was saved before still loads, and the run
// goes on from it to the same bits. In this process, so that the operations can be counted.
#include <gtest/gtest.h>

#include "run_bits.h"
#include "support/fault_env.h"
#include "train/trainer.h"

namespace mortise::test {
namespace {

constexpr int64_t kSteps = 3;

// Relative paths of settings start at the working folder.
class InFolder {
 public:
  explicit InFolder(const Path& dir) : before_(std::filesystem::current_path()) { std::filesystem::current_path(dir); }
  InFolder(const InFolder&) = delete;
  InFolder& operator=(const InFolder&) = delete;
  ~InFolder() { std::filesystem::current_path(before_); }

 private:
  Path before_;
};

Result<TrainSummary> train_on(Env& env, const std::string& out) {
  const std::vector<std::string> settings{
      "trainer.default_local_dir=" + out, "trainer.rollout_data_dir=" + out + "/dump", "trainer.logger=[]",
      "trainer.total_training_steps=" + std::to_string(kSteps), "trainer.max_actor_ckpt_to_keep=1"};
  const LoadedConfig config = TRY(load_config(default_env(), "rl.toml", settings));
  return train(env, config, {});
}

TEST(RunFaults, AnyFailingCallLeavesACheckpointThatGoesOn) {
  const TinyTask task;
  const InFolder inside(task.path());
  FaultEnv counting(default_env());
  ASSERT_OK(train_on(counting, "straight"));
  const int64_t num_operations = counting.num_operations();
  EXPECT_GT(num_operations, 100);
  const auto expected = bits_of_run("straight", kSteps);
  const int64_t stride = std::getenv("MORTISE_LONG") != nullptr ? 1 : 17;
  int num_failed = 0;
  for (int64_t k = 1; k <= num_operations; k += stride) {
    for (const bool crashes : {false, true}) {
      FaultEnv env(default_env());
      if (crashes)
        env.crash_at(k);
      else
        env.fail_at(k);
      const Result<TrainSummary> stopped = train_on(env, "out");
      ASSERT_GE(env.num_operations(), k);
      const std::string where = (crashes ? "gone from operation " : "failed operation ") + std::to_string(k) + ", " +
                                env.operations()[static_cast<size_t>(k) - 1];
      if (!stopped.ok()) {
        EXPECT_EQ(stopped.error().kind, ErrorKind::kDisk) << where << ": " << stopped.error().to_string();
        ++num_failed;
      }
      FaultEnv healthy(default_env());
      const Result<TrainSummary> resumed = train_on(healthy, "out");
      ASSERT_TRUE(resumed.ok()) << where << ": " << resumed.error().to_string();
      expect_same_bits(bits_of_run("out", kSteps), expected, where);
      ASSERT_OK(remove_tree(default_env(), "out"));
    }
  }
  EXPECT_GT(num_failed, 0);
}

}  // namespace
}  // namespace mortise::test
