// A critic that continues the adapter of a folder: it begins with the folder's numbers, and a resume has the same bits.
#include <gtest/gtest.h>

#include <filesystem>

#include "foundation/formats/safetensors.h"
#include "process.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

// A folder with an adapter of rank 2 of the tiny model's first query matrix, and a value head of zeros.
void write_critic_adapter(const TinyTask& task, const std::string& name, bool has_head) {
  constexpr size_t kRank = 2, kWidth = 32;
  std::vector<float> a(kRank * kWidth), b(kRank * kWidth), head(kWidth, 0.0F);
  for (size_t i = 0; i < a.size(); ++i) a[i] = 0.01F * static_cast<float>(i % 13) - 0.05F;
  for (size_t i = 0; i < b.size(); ++i) b[i] = 0.02F * static_cast<float>(i % 11) - 0.1F;
  const std::string prefix = "base_model.model.", module = prefix + "model.layers.0.self_attn.q_proj.";
  std::vector<TensorView> tensors = {view_of<float>(module + "lora_A.weight", a, {kRank, kWidth}),
                                     view_of<float>(module + "lora_B.weight", b, {kWidth, kRank})};
  if (has_head) tensors.push_back(view_of<float>(prefix + "score.weight", head, {1, kWidth}));
  std::filesystem::create_directories(task.path() / name);
  ASSERT_OK(write_safetensors_file(default_env(), task.path() / name / "adapter_model.safetensors", tensors));
  Json config = {{"peft_type", "LORA"}, {"task_type", "SEQ_CLS"}, {"base_model_name_or_path", "model"},
                 {"r", kRank},          {"lora_alpha", 4},        {"target_modules", {"q_proj"}}};
  if (has_head) config["modules_to_save"] = {"score"};
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
  write_critic_adapter(task, "adapter", /*has_head=*/true);
  const Outcome straight = task.mortise("train", "straight", settings);
  ASSERT_EQ(straight.code, 0) << straight.output;
  const auto rows = rows_of(task.path() / "straight/metrics.jsonl");
  EXPECT_EQ(rows[0]["critic/values/mean"].get<double>(), 0.0);
  EXPECT_NE(rows[2]["critic/values/mean"].get<double>(), 0.0);
  expect_same_bits_from_every_step(task, settings, 3);
  write_critic_adapter(task, "headless", /*has_head=*/false);
  settings[2] = "critic.model.lora_adapter_path=headless";
  const Outcome headless = task.mortise("train", "headless_run", settings);
  EXPECT_EQ(headless.code, 2) << headless.output;
  EXPECT_NE(headless.output.find("the critic's adapter holds no value head"), std::string::npos) << headless.output;
}

}  // namespace
}  // namespace mortise::test
