// Limits on the numbers of a step: each one stops a run with its exit code and a message.
#include <gtest/gtest.h>

#include "run_bits.h"

namespace mortise::test {
namespace {

void expect_stop(const TinyTask& task, const std::string& out, const std::vector<std::string>& settings, int code,
                 const std::string& text, size_t num_rows) {
  std::vector<std::string> at_once{"trainer.limit_patience=1"};  // where `settings` does not say otherwise
  at_once.insert(at_once.end(), settings.begin(), settings.end());
  const Outcome outcome = task.mortise("train", out, at_once);
  EXPECT_EQ(outcome.code, code) << outcome.output;
  EXPECT_NE(outcome.output.find(text), std::string::npos) << outcome.output;
  // The step that broke the limit is in the metrics, the message in the run's log.
  EXPECT_EQ(rows_of(task.path() / out / "metrics.jsonl").size(), num_rows) << outcome.output;
  EXPECT_NE(default_env().read_file(task.path() / out / "log.txt").value().find(text), std::string::npos);
}

TEST(Limits, SamplerAndTrainerApart) {
  const TinyTask task;
  expect_stop(task, "out", {"trainer.rollout_probs_diff_limit=0"}, 5,
              "more than trainer.rollout_probs_diff_limit = 0; sampler and trainer no longer compute", 1);
  EXPECT_FALSE(default_env().exists(task.path() / "out/latest"));  // the weights are in doubt
  const Outcome enough =
      task.mortise("train", "enough", {"trainer.rollout_probs_diff_limit=1e-6", "trainer.limit_patience=1"});
  EXPECT_EQ(enough.code, 0) << enough.output;
}

TEST(Limits, FarFromTheReference) {
  const TinyTask task;
  expect_stop(task, "reward", {"trainer.kl_limit=1e-9", "algorithm.kl_penalty=low_var_kl"}, 5,
              "step 2: actor/reward_kl_penalty is", 2);
  EXPECT_FALSE(default_env().exists(task.path() / "reward/global_step_2"));
  EXPECT_TRUE(default_env().exists(task.path() / "reward/global_step_1"));
  expect_stop(
      task, "loss",
      {"trainer.kl_limit=1e-9", "algorithm.use_kl_in_reward=false", "actor.use_kl_loss=true", "actor.kl_loss_coef=0"},
      5, ": kl is", 1);  // the second update of the first step has left it
  const Outcome without = task.mortise("train", "without", {"trainer.kl_limit=1", "algorithm.use_kl_in_reward=false"});
  EXPECT_EQ(without.code, 2) << without.output;
  EXPECT_NE(without.output.find("needs a KL to the reference"), std::string::npos) << without.output;
}

TEST(Limits, RowsWithoutAReward) {
  const TinyTask task;
  std::string rows;
  for (int i = 0; i < 12; ++i)
    rows += std::string(R"({"prompt": "1+1=", "scores": )") + (i < 4 || i % 2 == 0 ? "[0, 1, 0, 1]" : "null") + "}\n";
  ASSERT_OK(write_file(default_env(), task.path() / "rows.jsonl", rows));
  const std::vector<std::string> settings{"data.train_files=rows.jsonl", "data.shuffle=false", "reward.0.use=column",
                                          "reward.0.key=scores",         "~reward.0.pattern",  "trainer.save_freq=-1",
                                          "trainer.nan_reward_limit=0.4"};
  expect_stop(task, "out", settings, 9, "step 2: frac_reward_nan is 0.5, more than trainer.nan_reward_limit = 0.4", 2);
  EXPECT_TRUE(default_env().exists(task.path() / "out/global_step_2/manifest.json"));
}

TEST(Limits, GroupsWithoutADifference) {
  const TinyTask task;
  const std::vector<std::string> settings{"reward.0.pattern=^", "trainer.zero_variance_limit=0.9",
                                          "trainer.limit_patience=3", "trainer.save_freq=-1"};
  expect_stop(task, "out", settings, 9,
              "step 3: frac_reward_zero_std is 1, more than trainer.zero_variance_limit = 0.9, "
              "for 3 steps in a row",
              3);
  // The run resumes, and stops at once.
  expect_stop(task, "out", settings, 9, "step 4: frac_reward_zero_std is 1", 4);
  std::vector<std::string> without = settings;
  without[1] = "trainer.zero_variance_limit=null";
  const Outcome free = task.mortise("train", "out", without);
  EXPECT_EQ(free.code, 0) << free.output;
}

}  // namespace
}  // namespace mortise::test
