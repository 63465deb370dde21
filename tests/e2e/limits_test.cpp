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

std::vector<std::string> checkpoints_in(const Path& run) {
  std::vector<std::string> out;
  const std::vector<std::string> names = default_env().list_dir(run).value();
  for (const std::string& name : names)
    if (name.starts_with("global_step_")) out.push_back(name);
  return out;
}

// The step with the largest value, the first of equals.
int64_t best_step(const Path& run, const std::string& metric) {
  int64_t best = 0;
  double value = -1e300;
  for (const Json& row : rows_of(run / "metrics.jsonl")) {
    if (!row.contains(metric) || row[metric].get<double>() <= value) continue;
    value = row[metric].get<double>();
    best = row["step"].get<int64_t>();
  }
  return best;
}

TEST(Limits, TheBestValidationIsKeptAlsoOverAResume) {
  const TinyTask task;
  std::vector<std::string> settings{"data.val_files=data/val.jsonl",
                                    "trainer.test_freq=1",
                                    "trainer.save_freq=-1",
                                    "trainer.max_actor_ckpt_to_keep=1",
                                    "trainer.val_before_train=false",
                                    "rollout.val_kwargs.do_sample=true",
                                    "rollout.val_kwargs.temperature=1",
                                    "actor.optim.lr_scheduler_type=constant",
                                    "trainer.metric_for_best_model=eval_reward",
                                    "trainer.total_training_steps=8"};
  const Outcome straight = task.mortise("train", "straight", settings);
  ASSERT_EQ(straight.code, 0) << straight.output;
  const int64_t best = best_step(task.path() / "straight", "eval_reward");
  const std::string name = "global_step_" + std::to_string(best);
  EXPECT_EQ(default_env().read_file(task.path() / "straight/best").value(), name + "\n");
  std::vector<std::string> expected{name};
  if (best != 8) expected.push_back("global_step_8");
  EXPECT_EQ(checkpoints_in(task.path() / "straight"), expected);
  EXPECT_NE(straight.output.find("the best so far: straight/" + name), std::string::npos) << straight.output;

  settings.back() = "trainer.total_training_steps=3";
  ASSERT_EQ(task.mortise("train", "stopped", settings).code, 0);
  settings.back() = "trainer.total_training_steps=8";
  const Outcome resumed = task.mortise("train", "stopped", settings);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(default_env().read_file(task.path() / "stopped/best").value(), name + "\n");
  expect_same_bits(bits_of_run(task.path() / "stopped", 8), bits_of_run(task.path() / "straight", 8), "resumed");
}

TEST(Limits, PatienceEndsARunForGood) {
  const TinyTask task;
  const std::vector<std::string> settings{
      "data.val_files=data/val.jsonl",         "trainer.test_freq=1",
      "trainer.val_before_train=false",        "trainer.metric_for_best_model=eval_reward",
      "trainer.early_stopping_patience=2",     "trainer.early_stopping_threshold=10",  // no gain is enough
      "actor.optim.lr_scheduler_type=constant"};
  const Outcome ended = task.mortise("train", "out", settings);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_NE(ended.output.find("2 validations in a row were no better: the run ends early"), std::string::npos)
      << ended.output;
  EXPECT_EQ(rows_of(task.path() / "out/metrics.jsonl").size(), 3U);
  EXPECT_TRUE(default_env().exists(task.path() / "out/global_step_3/manifest.json"));
  const Outcome again = task.mortise("train", "out", settings);
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(rows_of(task.path() / "out/metrics.jsonl").size(), 3U) << "a resume learns nothing more";
  const Outcome misspelt =
      task.mortise("train", "other", {"data.val_files=data/val.jsonl", "trainer.metric_for_best_model=eval_rewards"});
  EXPECT_EQ(misspelt.code, 2) << misspelt.output;
  EXPECT_NE(misspelt.output.find("did you mean 'eval_reward'"), std::string::npos) << misspelt.output;
}

}  // namespace
}  // namespace mortise::test
