// Which settings a resume may find changed: every key of the catalog is either compared or in a list here.
#include "train/resume.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <type_traits>

#include "config/fields.h"
#include "train/run_parts.h"

namespace mortise {
namespace {

// Another value of the same type; whether the key would allow it does not matter here.
void change(const FieldRef& ref) {
  std::visit(
      [](auto* value) {
        using T = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<T, bool>)
          *value = !*value;
        else if constexpr (std::is_same_v<T, std::string>)
          *value += "x";
        else if constexpr (std::is_same_v<T, std::chrono::milliseconds>)
          *value += std::chrono::milliseconds(1000);
        else if constexpr (std::is_same_v<T, Json>)
          (*value)["x"] = 1;
        else if constexpr (std::is_arithmetic_v<T>)
          *value += 1;
        else if constexpr (requires { value->has_value(); })
          value->has_value() ? value->reset() : (void)value->emplace();
        else
          value->emplace_back();
      },
      ref);
}

RunConfig base_config(const std::string& scheduler) {
  RunConfig config;
  config.reward.resize(1);
  config.actor.optim.lr_scheduler_type = scheduler;
  return config;
}

// Those by which the resume of a `kind` may differ from its run.
std::set<std::string> free_keys(RunKind kind, const std::string& scheduler = "constant") {
  std::set<std::string> free;
  for (const Field& field : all_fields()) {
    const RunConfig before = base_config(scheduler);
    RunConfig now = before;
    change(field.in_run ? field.in_run(now) : field.in_reward(now.reward[0]));
    const std::string changed = changed_settings(before, now, kind);
    if (changed.empty()) {
      free.insert(field.key);
      continue;
    }
    std::string key = field.key;
    if (const size_t star = key.find('*'); star != std::string::npos) key[star] = '0';
    if (field.inline_params) key.resize(key.rfind('.'));
    EXPECT_THAT(changed, testing::StartsWith("\n  " + key)) << field.key;
    EXPECT_EQ(std::ranges::count(changed, '\n'), 1) << changed;
  }
  return free;
}

const std::set<std::string> kFreeOfAll = {"preset",
                                          "model.enable_gradient_checkpointing",
                                          "model.activation_memory_mib",
                                          "data.val_files",
                                          "data.val_max_samples",
                                          "actor.ppo_micro_batch_size_per_gpu",
                                          "actor.use_dynamic_bsz",
                                          "actor.ppo_max_token_len_per_gpu",
                                          "rollout.top_log_probs",
                                          "rollout.max_num_seqs",
                                          "rollout.kv_cache_mib",
                                          "rollout.sleep_while_training",
                                          "rollout.val_kwargs.n",
                                          "rollout.val_kwargs.temperature",
                                          "rollout.val_kwargs.top_k",
                                          "rollout.val_kwargs.top_p",
                                          "rollout.val_kwargs.do_sample",
                                          "reward.*.name",
                                          "reward.*.timeout",
                                          "reward.*.row_timeout",
                                          "reward.*.allow",
                                          "trainer.total_epochs",
                                          "trainer.total_training_steps",
                                          "trainer.default_local_dir",
                                          "trainer.save_freq",
                                          "trainer.save_freq_updates",
                                          "trainer.test_freq",
                                          "trainer.val_before_train",
                                          "trainer.val_only",
                                          "trainer.rollout_probs_diff_limit",
                                          "trainer.kl_limit",
                                          "trainer.nan_reward_limit",
                                          "trainer.zero_variance_limit",
                                          "trainer.limit_patience",
                                          "trainer.max_actor_ckpt_to_keep",
                                          "trainer.save_dtype",
                                          "trainer.max_shard_size",
                                          "trainer.save_merged_lora",
                                          "trainer.resume_mode",
                                          "trainer.resume_from_path",
                                          "trainer.logger",
                                          "trainer.log_val_generations",
                                          "trainer.validation_data_dir",
                                          "trainer.rollout_data_dir",
                                          "trainer.num_completions_to_print",
                                          "trainer.nonfinite_update_limit",
                                          "trainer.num_threads",
                                          "sft.total_training_steps",
                                          "sft.test_freq",
                                          "sft.stop_val_accuracy"};

// With every key of these tables.
std::set<std::string> with_tables(std::set<std::string> keys, const std::vector<std::string>& tables) {
  for (const Field& field : all_fields()) {
    if (std::ranges::any_of(tables, [&](const std::string& table) { return field.key.starts_with(table); }))
      keys.insert(field.key);
  }
  return keys;
}

TEST(ChangedSettings, OfSftAreAllButTheFreeOnes) {
  const std::vector<std::string> tables{"algorithm.", "critic.", "ref.", "actor.policy_loss.", "plugins."};
  std::set<std::string> expected = with_tables(kFreeOfAll, tables);
  EXPECT_EQ(free_keys(RunKind::kSft), expected);
  // A schedule is cut to the run's length, which is sft's own.
  expected.erase("sft.total_training_steps");
  EXPECT_EQ(free_keys(RunKind::kSft, "cosine"), expected);
}

TEST(ChangedSettings, OfTrainingAreAllButTheFreeOnes) {
  std::set<std::string> expected = with_tables(kFreeOfAll, {"sft.", "plugins."});
  for (const char* key :
       {"data.response_key", "data.messages_key", "algorithm.rollout_correction.preset",
        "ref.log_prob_micro_batch_size_per_gpu", "ref.log_prob_use_dynamic_bsz", "ref.log_prob_max_token_len_per_gpu",
        "critic.ppo_micro_batch_size_per_gpu", "critic.ppo_max_token_len_per_gpu"})
    expected.insert(key);
  EXPECT_EQ(free_keys(RunKind::kTrain), expected);
  expected.erase("trainer.total_training_steps");
  expected.erase("trainer.total_epochs");
  EXPECT_EQ(free_keys(RunKind::kTrain, "cosine"), expected);
}

TEST(ChangedSettings, OfSftTheCriticsScheduleDoesNotMatter) {
  RunConfig before = base_config("constant");
  before.critic.optim.lr_scheduler_type = "cosine";
  RunConfig now = before;
  now.sft.total_training_steps += 1;
  now.trainer.total_training_steps = 7;
  EXPECT_EQ(changed_settings(before, now, RunKind::kSft), "");
  EXPECT_THAT(changed_settings(before, now, RunKind::kTrain), testing::HasSubstr("trainer.total_training_steps"));
}

}  // namespace
}  // namespace mortise
