// Recipes of configs/ in short runs that learn: the task is one that fresh weights learn in seconds. So the model, the
// data, the reward, the learning rate and the sizes are not the recipe's, except in the text game.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "foundation/formats/safetensors.h"
#include "program.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

std::string recipe(const std::string& name) { return std::string(MORTISE_SOURCE_DIR) + "/configs/" + name + ".toml "; }

// What every recipe of the quickstart's task gets here: fresh weights, and completions that must begin with a 7. They are
// half as long as in the recipes: what follows the 7 does not change the reward.
const std::string kSevens =
    "model.path=model data.train_files=data/train.jsonl data.val_files=[] reward.0.use=regex reward.0.pattern='^7' "
    "reward.0.column=null data.max_response_length=4 data.train_batch_size=16 actor.ppo_mini_batch_size=16 rollout.n=8 "
    "trainer.total_training_steps=30 actor.optim.lr=3e-3 actor.optim.lr_scheduler_type=constant "
    "actor.optim.lr_warmup_steps=0 trainer.default_local_dir=out trainer.num_threads=2 trainer.logger='[]' ";

// Runs the recipe and returns its metrics, a line per step. About one completion in fourteen begins right.
std::vector<Json> learns_sevens(const TaskFolder& task, const std::string& name, const std::string& more = "",
                                double least = 0.7) {
  const Outcome done = task.mortise("train " + recipe(name) + kSevens + more);
  EXPECT_EQ(done.code, 0) << done.output;
  const Path metrics = task.path() / "out/metrics.jsonl";
  const double score = mean_score_of_last(metrics, 3, "critic/score/mean");
  std::printf("%s: a mean score of %.3f in the last 3 steps, at least %.1f is wanted\n", name.c_str(), score, least);
  EXPECT_GT(score, least) << name;
  return rows_of(metrics);
}

TEST(RecipeRuns, OverSampling) {
  const TaskFolder task;
  const std::vector<Json> steps = learns_sevens(task, "over_sampling");
  ASSERT_EQ(steps.size(), 30U);
  for (const Json& step : steps) EXPECT_EQ(number_of(step, "training/over_sampling/carried"), 4.0);
}

// A step samples 16 prompts, and an update takes 12.
TEST(RecipeRuns, CarryRows) {
  const TaskFolder task;
  const std::vector<Json> steps = learns_sevens(task, "carry_rows", "actor.ppo_mini_batch_size=12");
  ASSERT_EQ(steps.size(), 30U);
  EXPECT_EQ(number_of(steps[0], "training/carried_rows"), 32.0) << "4 prompts of 8 rows";
  EXPECT_EQ(number_of(steps[1], "training/carried_rows"), 64.0);
}

TEST(RecipeRuns, ReplayBuffer) {
  const TaskFolder task;
  double replaced = 0;
  for (const Json& step : learns_sevens(task, "replay_buffer"))
    replaced += number_of(step, "training/replay_buffer/replaced");
  EXPECT_GT(replaced, 0.0);
}

TEST(RecipeRuns, FrozenGroups) {
  const TaskFolder task;
  // The head is frozen with the embedding, so larger steps of the layers have to do the work.
  learns_sevens(task, "frozen", "actor.optim.lr=1e-2 trainer.save_freq=15 trainer.max_actor_ckpt_to_keep=2", 0.4);
  const Outcome diff = task.mortise("checkpoint diff out/global_step_15 out/global_step_30 --json");
  EXPECT_THAT(diff.output, testing::HasSubstr("model.layers.2.mlp")) << diff.output;
  EXPECT_THAT(diff.output, testing::Not(testing::HasSubstr("embed_tokens"))) << diff.output;
}

// Root mean square of what a run of one update has added to a parameter.
double movement_of(const TaskFolder& task, const std::string& name) {
  const SafetensorsFile before = SafetensorsFile::open(default_env(), task.path() / "model/model.safetensors").value();
  const SafetensorsFile after =
      SafetensorsFile::open(default_env(), task.path() / "out/global_step_1/huggingface/model.safetensors").value();
  const TensorView from = before.get(name).value(), to = after.get(name).value();
  const size_t count = from.bytes.size() / sizeof(float);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    float a = 0, b = 0;
    std::memcpy(&a, from.bytes.data() + i * sizeof(float), sizeof(float));
    std::memcpy(&b, to.bytes.data() + i * sizeof(float), sizeof(float));
    sum += (b - a) * (b - a);
  }
  return std::sqrt(sum / static_cast<double>(count));
}

// Muon moves a matrix by at most about 0.2 lr on average (match_rms_adamw), and by less if the gradient has a low rank. In
// the first update AdamW moves each number of the norms by lr, as it would those of a matrix. The group of the last layer
// doubles both.
TEST(RecipeRuns, GroupsOfMuon) {
  const TaskFolder task;
  constexpr double kRate = 3e-3;
  const Outcome done =
      task.mortise("train " + recipe("frozen") + kSevens + "trainer.total_training_steps=1 actor.optim.weight_decay=0");
  ASSERT_EQ(done.code, 0) << done.output;
  EXPECT_EQ(movement_of(task, "model.embed_tokens.weight"), 0.0);
  for (const auto& [layer, scale] : {std::pair("0", 1.0), std::pair("1", 1.0), std::pair("2", 2.0)}) {
    const std::string prefix = std::string("model.layers.") + layer + ".";
    for (const char* const matrix : {"self_attn.o_proj.weight", "mlp.up_proj.weight"}) {
      EXPECT_GT(movement_of(task, prefix + matrix) / kRate, 0.05 * scale) << prefix << matrix;
      EXPECT_LT(movement_of(task, prefix + matrix) / kRate, 0.25 * scale) << prefix << matrix;
    }
    EXPECT_NEAR(movement_of(task, prefix + "input_layernorm.weight") / kRate, scale, 0.05 * scale) << prefix;
  }
}

TEST(RecipeRuns, AdaptersOfActorAndCritic) {
  const TaskFolder task;
  const std::vector<Json> steps = learns_sevens(
      task, "lora", "rollout.n=1 data.train_batch_size=64 actor.ppo_mini_batch_size=32 critic.optim.lr=3e-3", 0.4);
  EXPECT_GT(number_of(steps.back(), "critic/grad_norm"), 0.0);
  EXPECT_TRUE(default_env().exists(task.path() / "out/global_step_30/huggingface/adapter_config.json"));
}

TEST(RecipeRuns, Bfloat16) {
  const TaskFolder task;
  learns_sevens(task, "bfloat16");
}

TEST(RecipeRuns, CurriculumOfTwoFiles) {
  const TaskFolder task;
  std::string rows;
  for (int i = 0; i < 40; ++i)
    rows += R"({"prompt": "0+0+0=", "answer": "0"})"
            "\n";
  task.write("second.jsonl", rows);
  const std::vector<Json> steps = learns_sevens(
      task, "curriculum", R"(data.train_files='["data/train.jsonl","second.jsonl"]' trainer.rollout_data_dir=dump)");
  for (size_t step = 1; step <= steps.size(); ++step) {
    const std::vector<Json> dump = rows_of(task.path() / ("dump/" + std::to_string(step) + ".jsonl"));
    const auto is_second = [](const Json& row) { return row["input"] == "0+0+0="; };
    EXPECT_EQ(std::ranges::count_if(dump, is_second), 4 * 8) << "a quarter of 16 prompts, 8 times each";
  }
}

// The second epoch sorts the rows of the first file by their rewards of the first epoch. Here a column has these rewards.
TEST(RecipeRuns, CurriculumOfTheSecondEpoch) {
  const TaskFolder task;
  std::string first, second;
  for (int i = 0; i < 24; ++i)
    first += fmt::format("{{\"prompt\": \"{}+1=\", \"scores\": {}}}\n", 10 + i, (i * 7) % 24);
  for (int i = 0; i < 8; ++i)
    second += R"({"prompt": "0+0+0=", "scores": 0})"
              "\n";
  task.write("first.jsonl", first);
  task.write("second.jsonl", second);
  const Outcome done = task.mortise(
      "train " + recipe("curriculum") +
      R"(model.path=model data.train_files='["first.jsonl","second.jsonl"]' data.val_files=[] reward.0.use=column )"
      "reward.0.column=null reward.0.key=scores data.train_batch_size=16 actor.ppo_mini_batch_size=16 rollout.n=2 "
      "trainer.total_training_steps=4 trainer.default_local_dir=out trainer.num_threads=2 trainer.logger='[]' "
      "trainer.rollout_data_dir=dump");
  ASSERT_EQ(done.code, 0) << done.output;
  const auto scores_of = [&](int step) {
    std::vector<double> scores;
    for (const Json& row : rows_of(task.path() / fmt::format("dump/{}.jsonl", step)))
      if (row["input"] != "0+0+0=") scores.push_back(number_of(row, "score"));
    EXPECT_EQ(scores.size(), 24U) << "12 prompts of the first file, twice each";
    return scores;
  };
  const std::vector<double> best = scores_of(3), rest = scores_of(4);
  EXPECT_EQ(*std::ranges::min_element(best), 12.0);
  EXPECT_EQ(*std::ranges::max_element(rest), 11.0);
  // The first epoch was not sorted.
  const std::vector<double> first_step = scores_of(1);
  EXPECT_NE(*std::ranges::min_element(first_step), 12.0);
}

TEST(RecipeRuns, SeveralValidationSets) {
  const TaskFolder task;
  const std::string sets = "data.val_files=data/val.jsonl data.val_sets.sampled.files=data/val.jsonl ";
  const std::vector<Json> steps = learns_sevens(
      task, "validation_sets", sets + "data.val_max_samples=50 trainer.test_freq=15 trainer.save_freq=15");
  const Json& last = steps.back();
  const std::string sampled = "val-core/sampled/addition/reward/";
  EXPECT_LE(number_of(last, sampled + "pass@1"), number_of(last, sampled + "pass@4"));
  EXPECT_LE(number_of(last, sampled + "pass@4"), number_of(last, sampled + "pass@8"));
  EXPECT_GT(number_of(last, sampled + "pass@1"), 0.5);
  EXPECT_TRUE(last.contains("val-core/addition/reward/mean@1"));
  EXPECT_TRUE(default_env().exists(task.path() / "out/best"));
}

TEST(RecipeRuns, MixtureOfExperts) {
  const TaskFolder task("--experts");
  const std::vector<Json> steps = learns_sevens(task, "experts", "actor.ppo_mini_batch_size=8");
  EXPECT_GT(number_of(steps.back(), "actor/router_aux_loss"), 0.0);
}

const std::string kExpertTargets =
    R"('model.target_parameters=["mlp.experts.gate_up_proj","mlp.experts.down_proj","mlp.gate.weight"]' )";

// The same mixture. Only an adapter of its experts and routers is trained. It is saved in PEFT's form.
TEST(RecipeRuns, AdapterOfExperts) {
  const TaskFolder task("--experts");
  learns_sevens(
      task, "experts",
      "actor.ppo_mini_batch_size=16 actor.optim.lr=1e-2 model.lora_rank=4 'model.target_modules=[]' " + kExpertTargets);
  const SafetensorsFile saved =
      SafetensorsFile::open(default_env(), task.path() / "out/global_step_30/huggingface/adapter_model.safetensors")
          .value();
  for (const char* const name :
       {"mlp.experts.base_layer.lora_A.weight", "mlp.experts.lora_B.weight", "mlp.gate.lora_A.weight"})
    EXPECT_NE(saved.find(std::string("base_model.model.model.layers.0.") + name), nullptr) << name;
}

// Ranks that share optimizers, or also the base, have the adapter of one process, bit by bit.
TEST(RecipeRuns, RanksShareAnAdapterOfExperts) {
  const TaskFolder task("--experts");
  for (const auto& [dtype, stages] : {std::pair(std::string("float32"), std::vector{"1", "3"}),
                                      std::pair(std::string("bfloat16"), std::vector{"2", "3"})}) {
    const std::string command = "train " + recipe("experts") + kSevens + kExpertTargets +
                                "model.lora_rank=4 actor.ppo_mini_batch_size=8 rollout.n=4 "
                                "trainer.total_training_steps=2 trainer.deterministic=true model.dtype=" +
                                dtype;
    const auto adapter_of = [&](const std::string& start, const std::string& settings, const std::string& out) {
      const Outcome done = task.mortise(start + command + settings + " trainer.default_local_dir=" + out);
      EXPECT_EQ(done.code, 0) << done.output;
      return hash_of(task.path() / out / "global_step_2/huggingface/adapter_model.safetensors");
    };
    const std::string alone = adapter_of("", "", dtype);
    EXPECT_EQ(alone.size(), 64U) << alone;
    for (const std::string stage : stages)
      EXPECT_EQ(adapter_of("launch --nproc 2 ", " ranks.zero_stage=" + stage, dtype + "_zero_" + stage), alone)
          << dtype;
  }
}

// The first update of a step is the same with and without replay, because no weight has moved yet. In the second one,
// replay takes the experts of the old log-probs, and a run without it takes others.
TEST(RecipeRuns, RoutersOfTheMixtureAreReplayed) {
  const TaskFolder task("--experts");
  std::map<std::string, std::vector<Json>> updates;
  for (const std::string mode : {"R2", "disabled"}) {
    const Outcome done =
        task.mortise("train " + recipe("experts") + kSevens +
                     "actor.ppo_mini_batch_size=8 trainer.total_training_steps=1 trainer.deterministic=true "
                     "actor.optim.lr=3e-2 trainer.default_local_dir=" +
                     mode + " actor.router_replay.mode=" + mode);
    ASSERT_EQ(done.code, 0) << done.output;
    updates[mode] = rows_of(task.path() / mode / "updates.jsonl");
    ASSERT_EQ(updates[mode].size(), 2U);
  }
  EXPECT_EQ(number_of(updates["R2"][0], "grad_norm"), number_of(updates["disabled"][0], "grad_norm"));
  EXPECT_NE(number_of(updates["R2"][1], "grad_norm"), number_of(updates["disabled"][1], "grad_norm"));
}

// The warm start of the mixture has the quickstart's task.
TEST(RecipeRuns, WarmStartOfTheMixture) {
  const TaskFolder task("--experts");
  const Outcome done = task.mortise("sft " + recipe("sft_experts") +
                                    "model.path=model data.train_files=data/sft.jsonl data.val_files=data/val.jsonl "
                                    "sft.total_training_steps=100 trainer.default_local_dir=out trainer.num_threads=2 "
                                    "trainer.logger='[]'");
  ASSERT_EQ(done.code, 0) << done.output;
  const std::vector<Json> updates = rows_of(task.path() / "out/updates.jsonl");
  ASSERT_EQ(updates.size(), 100U);
  EXPECT_LT(number_of(updates.back(), "loss"), 0.8 * number_of(updates.front(), "loss"));
}

// The recipe as its first lines say.
TEST(RecipeRuns, ATextGame) {
  const TempDir dir;
  const Outcome made = run(program("make_tool_task") + " runs/game", dir.path());
  ASSERT_EQ(made.code, 0) << made.output;
  const Outcome done =
      run(program() + " train " + recipe("game") + "trainer.num_threads=2 trainer.logger='[]'", dir.path());
  ASSERT_EQ(done.code, 0) << done.output;
  const std::vector<Json> lines = rows_of(dir.path() / "runs/game/train/metrics.jsonl");
  std::vector<double> rewards;
  for (const Json& line : lines) {
    if (line.contains("critic/score/mean")) rewards.push_back(number_of(line, "critic/score/mean"));
  }
  ASSERT_EQ(rewards.size(), 80U);
  const auto mean_of = [&](size_t first, size_t last) {
    double sum = 0;
    for (size_t i = first; i < last; ++i) sum += rewards[i];
    return sum / static_cast<double>(last - first);
  };
  EXPECT_GT(mean_of(60, 80), mean_of(0, 5) + 0.2);
}

}  // namespace
}  // namespace mortise::test
