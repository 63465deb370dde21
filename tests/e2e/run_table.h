// The configurations that a run's promises are tested with: each uses something that a resume must not forget.
#pragma once

#include <string>
#include <vector>

#include "run_bits.h"

namespace mortise::test {

struct RunCase {
  const char* name;
  const char* command;                // train or sft
  std::vector<std::string> settings;  // over TinyTask's
  const char* model = "--tiny";
};

// All four places that name a loss or an estimator.
inline std::vector<std::string> with_isolation(const std::string& isolation) {
  std::vector<std::string> all{"actor.use_kl_loss=true", "plugins.bubblewrap=false"};
  for (const char* key :
       {"actor.policy_loss.isolation=", "actor.kl_isolation=", "algorithm.adv_isolation=", "algorithm.kl_isolation="})
    all.push_back(key + isolation);
  return all;
}

inline std::string sum_prompt(int a, int b) { return std::to_string(a) + "+" + std::to_string(b) + "="; }

// In data/code.jsonl of a task: any completion that is a Python program passes.
inline std::string code_rows() {
  std::string rows;
  for (int i = 10; i < 22; ++i) {
    const std::string prompt = sum_prompt(i, 2 * i);
    rows += dump_json(Json{{"prompt", prompt}, {"test_cases", {{"tests", {"assert True"}}}}}) + "\n";
  }
  return rows;
}

// In data/mix.jsonl of a task: rows to mix in. An update of three begins and ends inside a pass over these five.
inline std::string mix_rows() {
  std::string rows;
  for (int i = 10; i < 15; ++i) {
    const Json row{{"prompt", sum_prompt(i, 3 * i)}, {"response", std::to_string(4 * i)}};
    rows += dump_json(row) + "\n";
  }
  return rows;
}

inline const std::vector<RunCase>& run_table() {
  static const auto* table = new std::vector<RunCase>{
      // TinyTask itself: an adaptive KL in the reward, an estimator with state, a schedule, shuffled updates.
      {"adaptive_kl", "train", {}},
      // One mini-batch a step: its first update reads what sampling has computed.
      {"grpo",
       "train",
       {"actor.ppo_mini_batch_size=4", "algorithm.adv_estimator=grpo", "~algorithm.adv_params",
        "algorithm.use_kl_in_reward=false", "actor.use_kl_loss=true"}},
      {"ppo_with_critic",
       "train",
       {"algorithm.adv_estimator=gae", "~algorithm.adv_params", "algorithm.lam=0.95", "critic.ppo_epochs=1",
        "critic.optim.lr=1e-2", "critic.optim.lr_scheduler_type=linear"}},
      {"lora", "train", {"model.lora_rank=2", "model.lora_dropout=0.2"}},
      // Noise in updates, and learning rates that validations move.
      {"noise_and_greedy_rates",
       "train",
       {"actor.neftune_noise_alpha=5", "data.val_files=data/val.jsonl", "trainer.test_freq=1",
        "actor.optim.lr_scheduler_type=greedy", "actor.optim.lr_metric.name=eval_reward",
        "actor.optim.lr_metric.patience=0", "actor.optim.lr_metric.factor=0.5",
        "actor.optim.lr_metric.smooth_window=2"}},
      {"filter_groups", "train", {"algorithm.filter_groups.enable=true", "data.gen_batch_size=7"}},
      {"replay_buffer",
       "train",
       {"algorithm.replay_buffer.enable=true", "algorithm.adv_estimator=grpo", "~algorithm.adv_params",
        "algorithm.use_kl_in_reward=false", "rollout.n=3", "reward.0.pattern=^[0-2]"}},
      {"code_reward",
       "train",
       {"data.train_files=data/code.jsonl", "reward.0.use=code", "~reward.0.pattern", "reward.0.time_limit=60",
        "reward.0.row_timeout=120s", "reward.0.timeout=300s", "plugins.isolation=process"}},
      {"sft", "sft", {}},
      // Optimizers that step whole matrices, for the policy and for a critic; and one with moments in blocks of bytes.
      {"muon_and_adafactor",
       "train",
       {"algorithm.adv_estimator=gae", "~algorithm.adv_params", "actor.optim.optimizer=muon",
        "critic.optim.optimizer=adafactor", "critic.optim.scale_parameter=true"}},
      {"adamw_8bit",
       "sft",
       {"actor.optim.optimizer=adamw_8bit", "actor.optim.min_8bit_size=16", "actor.optim.quantize_embeddings=true"}},
      // Weights that exist in bfloat16 only, and a critic with masters.
      {"bfloat16",
       "train",
       {"model.dtype=bfloat16", "actor.optim.master_weights=false", "trainer.save_dtype=bfloat16",
        "algorithm.adv_estimator=gae", "~algorithm.adv_params", "critic.optim.lr=1e-2"}},
      // Updates of 10 rows: they hold rows of two steps, of two passes, or what an epoch leaves.
      {"carried_rows", "train", {"actor.rows_per_update=10", "actor.carry_rows=true", "actor.use_kl_loss=true"}},
      {"streaming", "train", {"data.streaming=true", "data.shuffle_buffer_size=5"}},
      // Supervised rows in every update but the first, whose mu is 0.
      {"sft_mix",
       "train",
       {"sft_mix.files=data/mix.jsonl", "sft_mix.train_batch_size=3", "sft_mix.phi=true", "sft_mix.mu_peak=0.5",
        "sft_mix.mu_valley=0.1", "sft_mix.mu_warmup_steps=2", "sft_mix.mu_decay_steps=20", "model.lora_rank=2",
        "model.lora_dropout=0.2"}},
      {"streamed_sft_mix",
       "train",
       {"actor.ppo_mini_batch_size=4", "sft_mix.files=data/mix.jsonl", "sft_mix.train_batch_size=3",
        "data.streaming=true", "data.shuffle_buffer_size=2"}},
  };
  return *table;
}

}  // namespace mortise::test
