// A critic that continues the adapter of a folder: it begins with the folder's numbers, and a resume has the same bits.
#include <gtest/gtest.h>

#include <filesystem>

#include "foundation/formats/safetensors.h"
#include "process.h"
#include "rank_runs.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

// A folder with an adapter of rank 2 of the tiny model's first query matrix, and a value head of zeros.
enum class Head { kStored, kOnlyNamed, kNone };
void write_critic_adapter(const TinyTask& task, const std::string& name, Head head_use, double dropout = 0) {
  constexpr size_t kRank = 2, kWidth = 32;
  std::vector<float> a(kRank * kWidth), b(kRank * kWidth), head(kWidth, 0.0F);
  for (size_t i = 0; i < a.size(); ++i) a[i] = 0.01F * static_cast<float>(i % 13) - 0.05F;
  for (size_t i = 0; i < b.size(); ++i) b[i] = 0.02F * static_cast<float>(i % 11) - 0.1F;
  const std::string prefix = "base_model.model.", module = prefix + "model.layers.0.self_attn.q_proj.";
  std::vector<TensorView> tensors = {view_of<float>(module + "lora_A.weight", a, {kRank, kWidth}),
                                     view_of<float>(module + "lora_B.weight", b, {kWidth, kRank})};
  if (head_use == Head::kStored) tensors.push_back(view_of<float>(prefix + "score.weight", head, {1, kWidth}));
  std::filesystem::create_directories(task.path() / name);
  ASSERT_OK(write_safetensors_file(default_env(), task.path() / name / "adapter_model.safetensors", tensors));
  Json config = {{"peft_type", "LORA"}, {"task_type", "SEQ_CLS"}, {"base_model_name_or_path", "model"},
                 {"r", kRank},          {"lora_alpha", 4},        {"target_modules", {"q_proj"}}};
  if (head_use != Head::kNone) config["modules_to_save"] = {"classifier", "score"};  // PEFT writes both
  if (dropout > 0) config["lora_dropout"] = dropout;
  task.write(name + "/adapter_config.json", dump_json(config));
}

// Such as a reward model's. Its head of zeros values every token at 0, until it has learnt.
TEST(CriticAdapter, ContinuesThatOfAFolder) {
  std::vector<std::string> settings{"trainer.total_training_steps=3",
                                    "trainer.max_actor_ckpt_to_keep=null",
                                    "critic.model.lora_adapter_path=adapter",
                                    "algorithm.adv_estimator=gae",
                                    "~algorithm.adv_params",
                                    "critic.optim.lr=1e-2"};
  const TinyTask task;
  write_critic_adapter(task, "adapter", Head::kStored);
  const Outcome straight = task.mortise("train", "straight", settings);
  ASSERT_EQ(straight.code, 0) << straight.output;
  const auto rows = rows_of(task.path() / "straight/metrics.jsonl");
  EXPECT_EQ(rows[0]["critic/values/mean"].get<double>(), 0.0);
  EXPECT_NE(rows[2]["critic/values/mean"].get<double>(), 0.0);
  expect_same_bits_from_every_step(task, settings, 3);
}

// A head that nothing has trained would value tokens at random. --dry-run refuses it as the run does.
TEST(CriticAdapter, IsRefusedWithoutItsHeadAndWithDropout) {
  const TinyTask task;
  write_critic_adapter(task, "headless", Head::kNone);
  write_critic_adapter(task, "named", Head::kOnlyNamed);
  write_critic_adapter(task, "dropout", Head::kStored, 0.1);
  const auto expect_refused = [&](const std::string& folder, int code, const std::string& why) {
    std::vector<std::string> settings{"critic.model.lora_adapter_path=" + folder, "algorithm.adv_estimator=gae",
                                      "~algorithm.adv_params"};
    for (const char* const how : {"", "--dry-run"}) {
      if (*how != '\0') settings.emplace_back(how);
      const Outcome refused = task.mortise("train", folder + "_run", settings);
      EXPECT_EQ(refused.code, code) << folder << how << refused.output;
      EXPECT_NE(refused.output.find(why), std::string::npos) << folder << how << refused.output;
    }
  };
  expect_refused("headless", 2, "the critic's adapter holds no value head");
  expect_refused("named", 3, "modules_to_save names 'score.weight', and the adapter's file has no such tensor");
  expect_refused("dropout", 2, "trained with lora_dropout");
}

// ranks.zero_stage = 3 spreads the base. Each rank has the whole adapter, and a part of its moments. Its gradient is
// counted with that of the policy, which is never there at the same time.
TEST(CriticAdapter, ADryRunCountsTheWholeAdapterOfEachRank) {
  const TinyTask task;
  const auto critic = [&](int stage, int rank) {
    const Json shown = dry_run_numbers(
        task, 2,
        {"algorithm.adv_estimator=gae", "~algorithm.adv_params", "critic.model.lora_rank=" + std::to_string(rank),
         "ranks.zero_stage=" + std::to_string(stage)});
    return shown.at("memory_bytes").at("critic").get<double>();
  };
  const double added = critic(0, 16) - critic(0, 8);  // weights, gradients, and two moments of the ranks 8 to 16
  EXPECT_GT(added, 10000.0);
  EXPECT_EQ(critic(3, 16) - critic(3, 8), added * 2.0 / 4.0);
  EXPECT_LT(critic(3, 8), critic(0, 8));
}

}  // namespace
}  // namespace mortise::test
