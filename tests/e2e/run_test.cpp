// A run that learns, one that is resumed, and one that is repeated.
#include <gtest/gtest.h>

#include "program.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

double mean_reward(const std::vector<Json>& rows, size_t first, size_t last) {
  double sum = 0.0;
  for (size_t i = first; i < last; ++i) sum += rows[i]["critic/score/mean"].get<double>();
  return sum / static_cast<double>(last - first);
}

// A line of updates.jsonl without what depends on the clock: all of it.
std::string lines_of(const Path& path) { return default_env().read_file(path).value(); }

TEST(Run, LearnsWhatTheRewardAsksFor) {
  for (const char* loss : {"vanilla", "gspo"}) {
    const TaskFolder task;
    const Outcome outcome = task.mortise(std::string("train run.toml actor.policy_loss.loss_mode=") + loss);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
    ASSERT_EQ(rows.size(), 40U);
    EXPECT_LT(mean_reward(rows, 0, 5), 0.5) << loss;
    EXPECT_GT(mean_reward(rows, 35, 40), 0.9) << loss;
    // The sampler and the trainer agree on what was sampled.
    for (const Json& row : rows) EXPECT_LT(row["training/rollout_probs_diff_mean"].get<double>(), 1e-6);
  }
}

TEST(Run, ResumedRunGivesTheSameBits) {
  const TaskFolder straight, stopped;
  const std::string settings =
      "train run.toml actor.ppo_mini_batch_size=8 actor.ppo_epochs=2 trainer.total_training_steps=6 "
      "trainer.save_freq=2 ";
  ASSERT_EQ(straight.mortise(settings).code, 0);
  ASSERT_EQ(stopped.mortise(settings).code, 0);
  // The state after a kill in step 4: all later files are deleted, and the log has a half-written line.
  ASSERT_OK(remove_tree(default_env(), stopped.path() / "out/global_step_6"));
  ASSERT_OK(write_file(default_env(), stopped.path() / "out/latest", "global_step_4\n"));
  const std::string updates = lines_of(stopped.path() / "out/updates.jsonl");
  ASSERT_OK(write_file(default_env(), stopped.path() / "out/updates.jsonl", updates.substr(0, updates.size() - 20)));
  const Outcome resumed = stopped.mortise(settings);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed from"), std::string::npos) << resumed.output;
  for (const char* file : {"out/global_step_6/huggingface/model.safetensors", "out/global_step_6/state.safetensors"}) {
    EXPECT_EQ(hash_of(straight.path() / file), hash_of(stopped.path() / file)) << file;
  }
  EXPECT_EQ(lines_of(straight.path() / "out/updates.jsonl"), lines_of(stopped.path() / "out/updates.jsonl"));
  EXPECT_EQ(rows_of(stopped.path() / "out/metrics.jsonl").size(), 6U);
  // TensorBoard gets the order to forget the steps after the checkpoint: an event of step 5 with SessionLog { status:
  // START }.
  const Outcome newest = run("cat $(ls out/events.out.tfevents.* | sort | tail -n 1)", stopped.path());
  EXPECT_NE(newest.output.find("\x10\x05\x3a\x02\x08\x01"), std::string::npos);
  // A finished run that starts again saves nothing, but it deletes what a kill left.
  ASSERT_OK(write_file(default_env(), stopped.path() / "out/.tmp_mortise.lock.0", "half"));
  ASSERT_EQ(stopped.mortise(settings).code, 0);
  EXPECT_FALSE(default_env().exists(stopped.path() / "out/.tmp_mortise.lock.0"));
}

TEST(Run, SupervisedWarmStartLowersTheLoss) {
  const TaskFolder task;
  const Outcome outcome = task.mortise(
      "sft run.toml sft.total_training_steps=30 sft.train_batch_size=64 data.train_files=data/sft.jsonl "
      "data.max_response_length=8");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 30U);
  EXPECT_LT(rows.back()["loss"].get<double>(), 0.8 * rows.front()["loss"].get<double>());
}

TEST(Run, EvaluatesAndGenerates) {
  const TaskFolder task;
  const Outcome eval = task.mortise(
      "eval run.toml data.val_files=data/val.jsonl data.val_max_samples=20 rollout.val_kwargs.n=4 "
      "rollout.val_kwargs.do_sample=true rollout.val_kwargs.temperature=1.0 --json");
  ASSERT_EQ(eval.code, 0) << eval.output;
  for (const char* name : {"mean@4", "pass@2", "best@4/mean", "maj@4/std"}) {
    EXPECT_NE(eval.output.find(std::string("val-core/addition/reward/") + name), std::string::npos) << eval.output;
  }
  const Outcome generated = task.mortise(
      "generate --model model --prompts data/val.jsonl --out g.jsonl rollout.n=2 rollout.response_length=4");
  ASSERT_EQ(generated.code, 0) << generated.output;
  const std::vector<Json> rows = rows_of(task.path() / "g.jsonl");
  ASSERT_EQ(rows.size(), 500U);
  for (const Json& completion : rows[7]["completions"]) {
    EXPECT_EQ(completion["token_ids"].size(), completion["log_probs"].size());
    EXPECT_LE(completion["token_ids"].size(), 4U);
  }
}

// Two sets next to data.val_files: one sampled, one with a reward of its own, which training does not pay for.
TEST(Run, ValidationSetsHaveTheirOwnSamplingAndRewards) {
  const TaskFolder task;
  task.write("sets.toml", default_env().read_file(task.path() / "run.toml").value() + R"(
logger = ["wandb", "mlflow", "prometheus"]
test_freq = 1
validation_data_dir = "val"
metric_for_best_model = "val-core/drawn/addition/reward/pass@3"
[[reward]]
use = "length"
target = 2
used_in = "validation"
[data.val_sets.drawn]
files = "data/val.jsonl"
max_samples = 5
n = 4
do_sample = true
temperature = 1.0
pass_k = [3]
[data.val_sets.short]
files = "data/val.jsonl"
max_samples = 7
rewards = ["length"]
)");
  const Outcome done = task.mortise(
      "train sets.toml trainer.total_training_steps=2 data.val_files=data/val.jsonl data.val_max_samples=6");
  ASSERT_EQ(done.code, 0) << done.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  for (const char* name : {"val-core/addition/reward/mean@1", "val-core/drawn/addition/reward/mean@4",
                           "val-core/drawn/addition/reward/pass@3", "val-aux/drawn/addition/length/mean@4",
                           "val-core/short/addition/reward/mean@1", "eval_reward", "eval_drawn_reward"})
    EXPECT_TRUE(rows.back().contains(name)) << name;
  EXPECT_FALSE(rows.back().contains("rewards/length/mean")) << "used in validation alone";
  EXPECT_TRUE(rows.back().contains("rewards/regex/mean"));
  EXPECT_EQ(rows_of(task.path() / "val/2.jsonl").size(), 6U);
  const std::vector<Json> drawn = rows_of(task.path() / "val/drawn/2.jsonl");
  EXPECT_EQ(drawn.size(), 20U);
  const std::vector<Json> brief = rows_of(task.path() / "val/short/2.jsonl");
  ASSERT_EQ(brief.size(), 7U);
  EXPECT_TRUE(brief[0]["rewards"].contains("length"));
  EXPECT_FALSE(brief[0]["rewards"].contains("regex"));
  for (const char* made : {"out/wandb", "out/mlruns", "out/metrics.prom", "out/best"})
    EXPECT_TRUE(default_env().exists(task.path() / made)) << made;

  const Outcome again = task.mortise("eval out --checkpoint best --n 8 --json");
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_NE(again.output.find("val-core/addition/reward/pass@8"), std::string::npos) << again.output;
  EXPECT_NE(again.output.find("val-core/drawn/addition/reward/mean@8"), std::string::npos) << again.output;
  const auto refused = [&](const std::string& words) { return task.mortise("eval sets.toml " + words).output; };
  EXPECT_NE(refused("data.val_sets.drawn.pass_k=[9]").find("pass@9 needs 9 completions"), std::string::npos);
  EXPECT_NE(refused("data.val_sets.drawn.temprature=1").find("did you mean 'temperature'"), std::string::npos);
  EXPECT_NE(refused("data.val_sets.short.rewards=[\"lenght\"]").find("did you mean 'length'"), std::string::npos);
  EXPECT_NE(task.mortise("eval .").output.find("has no config.resolved.toml"), std::string::npos);
}

TEST(Run, TransformersLoadsTheTrainedModel) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0') {
    GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: transformers did not check the trained model";
  }
  const TaskFolder task;
  ASSERT_EQ(task.mortise("train run.toml trainer.total_training_steps=3").code, 0);
  const Outcome checked = run("HF_HUB_OFFLINE=1 " + std::string(python) + " " + MORTISE_SOURCE_DIR +
                                  "/tests/e2e/transformers_folder.py " + program() + " out/global_step_3/huggingface .",
                              task.path());
  EXPECT_EQ(checked.code, 0) << checked.output;
}

TEST(Run, AFullDiskKeepsTheLastCheckpointAndTheRunAlive) {
  for (const char* command :
       {"train run.toml trainer.total_training_steps=5",
        "sft run.toml sft.total_training_steps=5 data.train_files=data/sft.jsonl data.max_response_length=8"}) {
    const TaskFolder task;
    const std::string mount = "unshare -rm sh -c 'mkdir -p small && mount -t tmpfs -o size=18m tmpfs small && ";
    if (run(mount + "true'", task.path()).code != 0) GTEST_SKIP() << "this machine lets nobody mount a small disk";
    const Outcome outcome =
        run(mount + program() + " " + command +
                " trainer.save_freq=1 trainer.default_local_dir=small/out; code=$?; cat small/out/latest; "
                "ls small/out/global_step_2/huggingface; wc -l small/out/updates.jsonl; exit $code'",
            task.path());
    EXPECT_EQ(outcome.code, 6) << outcome.output;
    for (const char* text :
         {"SAVE FAILED (1 in a row, the run stops after 3)", "global_step_3 could not be saved", "the disk is full",
          "step 5/5", "global_step_2\n", "model.safetensors", "5 small/out/updates.jsonl"}) {
      EXPECT_NE(outcome.output.find(text), std::string::npos) << command << ": " << text << "\n" << outcome.output;
    }
  }
}

TEST(Run, AResumeTellsWhatChangedAndAsks) {
  const TaskFolder task;
  ASSERT_EQ(task.mortise("train run.toml trainer.total_training_steps=2").code, 0);
  const std::string changed = "train run.toml trainer.total_training_steps=3 actor.policy_loss.loss_mode=gspo";
  const Outcome refused = task.mortise(changed);
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("actor.policy_loss.loss_mode: \"vanilla\" -> \"gspo\""), std::string::npos)
      << refused.output;
  EXPECT_EQ(rows_of(task.path() / "out/metrics.jsonl").size(), 2U);
  // What only sft reads is no change of a training run.
  const Outcome finished =
      task.mortise("train run.toml trainer.total_training_steps=2 sft.train_batch_size=7 data.response_key=text");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_NE(finished.output.find("this run is finished"), std::string::npos) << finished.output;
  EXPECT_EQ(task.mortise(changed + " --allow-change").code, 0);
  EXPECT_EQ(rows_of(task.path() / "out/metrics.jsonl").size(), 3U);
  const Outcome other = task.mortise("sft run.toml data.train_files=data/sft.jsonl data.max_response_length=8");
  EXPECT_EQ(other.code, 2) << other.output;
  EXPECT_EQ(task.mortise("train run.toml trainer.total_training_steps=1 --resume never").code, 0);
  EXPECT_TRUE(default_env().exists(task.path() / "out.before_1/global_step_3/huggingface/model.safetensors"));
}

TEST(Run, AFailingStepLeavesTheFinishedOnesSaved) {
  const TaskFolder task;
  std::string rows;
  for (int i = 0; i < 48; ++i) {
    rows += std::string(R"({"prompt": "1+1=", "scores": )") + (i < 32 ? "1" : "\"much\"") + "}\n";
  }
  task.write("mid.jsonl", rows);
  const Outcome outcome = task.mortise(
      "train run.toml data.train_files=mid.jsonl data.shuffle=false reward.0.use=column reward.0.key=scores "
      "data.columns.scores=json '~reward.0.pattern' trainer.total_training_steps=3");
  EXPECT_EQ(outcome.code, 9) << outcome.output;
  EXPECT_NE(outcome.output.find("the 2 finished steps are saved"), std::string::npos) << outcome.output;
  EXPECT_TRUE(default_env().exists(task.path() / "out/global_step_2/manifest.json"));
  // The step that failed gets the same prompts once more, not those behind them.
  EXPECT_EQ(task.mortise("train run.toml data.train_files=mid.jsonl data.shuffle=false reward.0.use=column "
                         "reward.0.key=scores data.columns.scores=json '~reward.0.pattern' "
                         "trainer.total_training_steps=3")
                .code,
            9);
}

TEST(Run, SftLooksAtAllRowsFirst) {
  const TaskFolder task;
  std::string rows;
  for (int i = 0; i < 300; ++i) rows += "{\"prompt\": \"1+1=\", \"response\": \"2\"}\n";
  task.write("rows.jsonl", rows + "{\"prompt\": \"1+1=\"}\n");
  const Outcome outcome = task.mortise(
      "sft run.toml sft.total_training_steps=1 sft.train_batch_size=2 data.train_files=rows.jsonl data.shuffle=false");
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_NE(outcome.output.find("rows.jsonl:301: the row has neither a completion 'response'"), std::string::npos)
      << outcome.output;
}

TEST(Run, AFinishedSftIsLeftAlone) {
  const TaskFolder task;
  const std::string sft =
      "sft run.toml sft.total_training_steps=3 sft.train_batch_size=8 data.train_files=data/sft.jsonl "
      "data.max_response_length=8";
  ASSERT_EQ(task.mortise(sft).code, 0);
  const std::string model = hash_of(task.path() / "out/global_step_3/huggingface/model.safetensors");
  const Outcome again = task.mortise(sft);
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_NE(again.output.find("this run is finished"), std::string::npos) << again.output;
  EXPECT_EQ(hash_of(task.path() / "out/global_step_3/huggingface/model.safetensors"), model);
}

TEST(Run, ValidationsKeepTheirCompletionsWhateverTheCommand) {
  const TaskFolder task;
  const std::string validation =
      " data.val_files=data/val.jsonl data.val_max_samples=20 trainer.validation_data_dir=val "
      "trainer.log_val_generations=2";
  const auto table = [](const Outcome& outcome) { return outcome.output.find("completion  "); };
  const Outcome only = task.mortise("train run.toml trainer.val_only=true data.train_files=[]" + validation);
  ASSERT_EQ(only.code, 0) << only.output;
  EXPECT_NE(table(only), std::string::npos) << only.output;
  EXPECT_EQ(rows_of(task.path() / "val/0.jsonl").size(), 20U);
  EXPECT_EQ(rows_of(task.path() / "out/metrics.jsonl").size(), 1U);
  const Outcome eval = task.mortise("eval run.toml" + validation);
  ASSERT_EQ(eval.code, 0) << eval.output;
  EXPECT_NE(table(eval), std::string::npos) << eval.output;
  EXPECT_EQ(rows_of(task.path() / "val/eval.jsonl").size(), 20U);
  const Outcome sft = task.mortise(
      "sft run.toml sft.total_training_steps=1 data.train_files=data/sft.jsonl data.max_response_length=8" +
      validation);
  ASSERT_EQ(sft.code, 0) << sft.output;
  EXPECT_NE(table(sft), std::string::npos) << sft.output;
  EXPECT_EQ(rows_of(task.path() / "val/1.jsonl").size(), 20U);
}

TEST(Run, AValidationAddsToARunAndCutsNothing) {
  const TaskFolder task;
  const std::string train = "train run.toml trainer.total_training_steps=4 trainer.save_freq=2 ";
  ASSERT_EQ(task.mortise(train).code, 0);
  const std::string settings = lines_of(task.path() / "out/config.resolved.toml");
  const Outcome only = task.mortise(
      train + "trainer.val_only=true data.val_files=data/val.jsonl data.val_max_samples=20 --resume out/global_step_2");
  ASSERT_EQ(only.code, 0) << only.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 5U);
  EXPECT_EQ(rows[4]["step"], 2);
  EXPECT_TRUE(rows[4].contains("val-core/addition/reward/mean@1"));
  EXPECT_EQ(rows_of(task.path() / "out/updates.jsonl").size(), 4U);
  EXPECT_EQ(lines_of(task.path() / "out/config.resolved.toml"), settings);
}

TEST(Run, WeightsThatDivergedEndItAndAreNotSaved) {
  const TaskFolder task;
  const Outcome outcome = task.mortise("train run.toml actor.optim.lr=1e30 trainer.total_training_steps=5");
  EXPECT_EQ(outcome.code, 5) << outcome.output;
  EXPECT_NE(outcome.output.find("the weights may have diverged"), std::string::npos) << outcome.output;
  EXPECT_FALSE(default_env().exists(task.path() / "out/latest"));
  // The run's log has the last word too.
  EXPECT_NE(lines_of(task.path() / "out/log.txt").find("the weights may have diverged"), std::string::npos);
}

// The estimator is not to blame for values that are not finite.
TEST(Run, ACriticThatDivergedEndsItByItsOwnName) {
  const TaskFolder task;
  const Outcome outcome =
      task.mortise("train run.toml algorithm.adv_estimator=gae critic.optim.lr=1e30 trainer.total_training_steps=5");
  EXPECT_EQ(outcome.code, 5) << outcome.output;
  EXPECT_NE(outcome.output.find("the critic gave a value that is not finite"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("advantage_estimator"), std::string::npos) << outcome.output;
}

// Fourteen updates on one batch. The first makes the weights diverge, and no sampling shows it before the step ends.
TEST(Run, UpdatesThatAreNotFiniteAreSkippedUpToALimit) {
  const TaskFolder task;
  const std::string train = "train run.toml actor.optim.lr=1e30 actor.ppo_epochs=14 trainer.total_training_steps=1 ";
  const Outcome stopped = task.mortise(train + "trainer.nonfinite_update_limit=5");
  EXPECT_EQ(stopped.code, 5) << stopped.output;
  EXPECT_NE(stopped.output.find("more than trainer.nonfinite_update_limit = 5"), std::string::npos) << stopped.output;
  EXPECT_NE(stopped.output.find("update 2 was skipped"), std::string::npos) << stopped.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["actor/skipped_updates"], 13.0);
  EXPECT_EQ(rows_of(task.path() / "out/updates.jsonl").size(), 14U);
  const TaskFolder patient;
  EXPECT_EQ(patient.mortise(train + "trainer.nonfinite_update_limit=13").code, 0);
}

TEST(Run, LayersComputedAgainGiveTheSameBits) {
  const TaskFolder kept, again;
  const std::string train =
      "train run.toml actor.ppo_mini_batch_size=8 trainer.total_training_steps=2 rollout.reuse_forward_mib=0 ";
  ASSERT_EQ(kept.mortise(train).code, 0);
  const Outcome outcome = again.mortise(train + "model.enable_gradient_checkpointing=true");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Path weights = "out/global_step_2/huggingface/model.safetensors";
  EXPECT_EQ(hash_of(kept.path() / weights), hash_of(again.path() / weights));
}

TEST(Run, ARewardThatOverflowsIsNamed) {
  const TaskFolder task;
  std::string rows;
  for (int i = 0; i < 16; ++i)
    rows += std::string(R"({"prompt": "1+1=", "scores": )") + (i == 2 ? "1e38" : i == 5 ? "-1e300" : "1") + "}\n";
  task.write("huge.jsonl", rows);
  const std::string train =
      "train run.toml data.train_files=huge.jsonl data.shuffle=false reward.0.use=column reward.0.key=scores "
      "'~reward.0.pattern' trainer.total_training_steps=1 plugins.max_failed_fraction=";
  const Outcome refused = task.mortise(train + "0");
  EXPECT_EQ(refused.code, 9) << refused.output;
  EXPECT_NE(
      refused.output.find("reward 'column' failed on 16 of 128 rows; first: row 16: gave 1e+38, which is above 1e15"),
      std::string::npos)
      << refused.output;
  const Outcome counted = task.mortise(train + "0.5");
  EXPECT_EQ(counted.code, 0) << counted.output;
  EXPECT_EQ(rows_of(task.path() / "out/metrics.jsonl")[0]["rewards/column/failed"], 16.0);
}

TEST(Run, TheReferencesPassesChangeNoNumber) {
  std::vector<std::vector<Json>> updates;
  for (const char* passes : {"", "ref.log_prob_micro_batch_size_per_gpu=3", "ref.log_prob_max_token_len_per_gpu=40"}) {
    const TaskFolder task;
    const Outcome outcome = task.mortise(std::string("train run.toml trainer.total_training_steps=2 ") +
                                         "actor.use_kl_loss=true actor.kl_loss_coef=0.1 " + passes);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    updates.push_back(rows_of(task.path() / "out/updates.jsonl"));
    ASSERT_EQ(updates.back().size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(updates.back()[i]["loss"].get<double>(), updates[0][i]["loss"].get<double>(), 1e-5) << passes;
      EXPECT_NEAR(updates.back()[i]["kl"].get<double>(), updates[0][i]["kl"].get<double>(), 1e-5) << passes;
    }
  }
}

// Conversations in, one template for training and generation.
TEST(Run, GeneratesFromMessages) {
  const TaskFolder task;
  task.write("chat.jsonl", "{\"prompt\": [{\"role\": \"user\", \"content\": \"1+2=\"}]}\n{\"prompt\": \"1+2=\"}\n");
  task.write("template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  const Outcome generated = task.mortise(
      "generate --model model --prompts chat.jsonl --out g.jsonl model.custom_chat_template=template.jinja "
      "rollout.temperature=0 rollout.response_length=3");
  ASSERT_EQ(generated.code, 0) << generated.output;
  const std::vector<Json> rows = rows_of(task.path() / "g.jsonl");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["completions"][0]["token_ids"], rows[1]["completions"][0]["token_ids"]);
}

}  // namespace
}  // namespace mortise::test
