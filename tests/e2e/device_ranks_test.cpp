// Whole runs of two ranks with model.device: through NCCL where two GPUs are, and else by the code of a device on the CPU,
// through Gloo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device_runs.h"
#include "lost_rank.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

// Data parallel on two GPUs, or with the code of a device on CPU tensors: what one rank learns, and the same bits if the run is
// deterministic. A resume may change the number of ranks.
TEST(DeviceRuns, RanksLearnWhatOneRankLearns) {
  if (const std::string why = why_not_two_ranks(); !why.empty()) GTEST_SKIP() << why;
  const std::string settings =
      kFew + kAsDevice + "'reward.0.pattern=^[0-4]' actor.ppo_max_token_len_per_gpu=30 trainer.num_threads=1 ";
  for (const std::string how : {"model.dtype=float64 ", "trainer.deterministic=true "}) {
    const TaskFolder task;
    const Outcome one = task.mortise(settings + how + "trainer.default_local_dir=one");
    ASSERT_EQ(one.code, 0) << one.output;
    const Outcome two = task.mortise("launch --nproc 2 " + settings + how);
    ASSERT_EQ(two.code, 0) << two.output;
    EXPECT_THAT(two.output, HasSubstr(kTold));
    EXPECT_GT(number_of(rows_of(task.path() / "one/updates.jsonl").back(), "grad_norm"), 1e-6) << "nothing to learn";
    expect_near_rows(task.path() / "out", task.path() / "one", "updates.jsonl", 1e-10);
    expect_near_rows(task.path() / "out", task.path() / "one", "metrics.jsonl", 1e-10);
    if (how.find("deterministic") == std::string::npos) continue;
    const char* weights = "global_step_3/huggingface/model.safetensors";
    EXPECT_EQ(hash_of(task.path() / "out" / weights), hash_of(task.path() / "one" / weights));
    cut_back(task.path() / "out", task.path() / "resumed", 2, 3);
    const Outcome resumed = task.mortise(settings + how + "trainer.default_local_dir=resumed");
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    EXPECT_EQ(hash_of(task.path() / "resumed" / weights), hash_of(task.path() / "one" / weights));
  }
}

// Ranks that share the optimizer, the weights, the layers or the tokens of a pass: what one rank learns. With ZeRO a
// deterministic run has the same bits.
TEST(DeviceRuns, RanksShareTheStateAndTheTokens) {
  if (const std::string why = why_not_two_ranks(); !why.empty()) GTEST_SKIP() << why;
  const std::string settings = kFew + kAsDevice +
                               "'reward.0.pattern=^[0-4]' actor.ppo_max_token_len_per_gpu=30 trainer.num_threads=1 "
                               "algorithm.adv_estimator=gae ";
  // Passes of 30 tokens, however many ranks share them.
  const std::string sequence =
      "actor.ulysses_sequence_parallel_size=2 critic.ulysses_sequence_parallel_size=2 "
      "actor.ppo_max_token_len_per_gpu=15 ";
  const char* weights = "global_step_3/huggingface/model.safetensors";
  const std::string zero = "ranks.zero_stage=";
  for (const std::string how : {"model.dtype=float64 ", "trainer.deterministic=true "}) {
    const TaskFolder task("--tiny");
    const bool is_exact = how.find("deterministic") != std::string::npos;
    std::vector<std::string> meshes{zero + "1 ", zero + "3 "};
    const std::string tensor = "actor.tensor_model_parallel_size=2 ";
    if (!is_exact) meshes = {zero + "2 ", sequence, sequence + zero + "3 ", tensor};
    const Outcome one = task.mortise(settings + how + "trainer.default_local_dir=one");
    ASSERT_EQ(one.code, 0) << one.output;
    int number = 0;
    for (const std::string& mesh : meshes) {
      SCOPED_TRACE(mesh + how);
      const std::string out = "out_" + std::to_string(++number);
      const Outcome two =
          task.mortise("launch --nproc 2 " + settings + how + mesh + "trainer.default_local_dir=" + out);
      ASSERT_EQ(two.code, 0) << two.output;
      EXPECT_THAT(two.output, HasSubstr(kTold));
      expect_near_rows(task.path() / out, task.path() / "one", "updates.jsonl", 1e-10);
      expect_near_rows(task.path() / out, task.path() / "one", "metrics.jsonl", 1e-10);
      if (is_exact) {
        EXPECT_EQ(hash_of(task.path() / out / weights), hash_of(task.path() / "one" / weights));
      }
    }
  }
}

// Each rank takes the GPU of its own number.
TEST(DeviceRuns, SeveralRanksDoNotShareAGpu) {
  const TaskFolder task;
  const Outcome one_gpu = task.mortise("launch --nproc 2 train run.toml model.device=cuda:0");
  EXPECT_EQ(one_gpu.code, 2) << one_gpu.output;
  EXPECT_THAT(one_gpu.output, HasSubstr("which is one GPU, and there are 2 ranks"));
  EXPECT_THAT(one_gpu.output, HasSubstr("each rank then takes its own GPU"));
}

// On GPUs within the limits that docs/ranks.md names, with the defaults.
TEST(DeviceRuns, AKilledRankIsNamed) {
  if (const std::string why = why_not_two_ranks(); !why.empty()) GTEST_SKIP() << why;
  expect_lost_rank_is_named(1, SIGKILL, {"model.device=" + test_device()}, tests_gpu() || is_long());
}

TEST(DeviceRuns, AStoppedRankIsNamed) {
  if (const std::string why = why_not_two_ranks(); !why.empty()) GTEST_SKIP() << why;
  std::vector<std::string> settings = tests_gpu() ? std::vector<std::string>{} : silence_of_tests();
  settings.push_back("model.device=" + test_device());
  expect_lost_rank_is_named(1, SIGSTOP, settings, tests_gpu() || is_long());
}

}  // namespace
}  // namespace mortise::test
