// Which settings a resume may find changed: for every key what its record says.
#include "train/resume/resume.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <type_traits>

#include "config/fields.h"
#include "train/run/run_parts.h"

namespace mortise {
namespace {

// Another value of the same type; whether the key would allow it does not matter here.
void change(const FieldRef& ref) {
  std::visit(
      [](auto value) {
        using T = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<T, ChoiceRef>) {
          const std::vector<size_t> now = value.read();
          const bool is_list = value.shape == ChoiceRef::Shape::kList;
          if (is_list)
            value.write(now.empty() ? std::vector<size_t>{0} : std::vector<size_t>{});
          else
            value.write({now.empty() ? 0 : (now[0] + 1) % value.names.size()});
        } else if constexpr (std::is_same_v<T, bool>)
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

RunConfig base_config(LrSchedule scheduler) {
  RunConfig config;
  config.reward.resize(1);
  config.actor.optim.lr_scheduler_type = scheduler;
  return config;
}

// Those by which the resume of a `kind` may differ from its run.
std::set<std::string> free_keys(RunKind kind, LrSchedule scheduler = LrSchedule::kConstant) {
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

// What the records say.
std::set<std::string> free_by_record(RunKind kind, bool length_counts) {
  const Uses command = kind == RunKind::kSft ? kInSft : kInTrain;
  std::set<std::string> free;
  for (const Field& field : all_fields()) {
    const bool is_length = field.on_resume == OnResume::kLength;
    if ((field.unread & command) != 0 || field.on_resume == OnResume::kFree || (is_length && !length_counts))
      free.insert(field.key);
  }
  return free;
}

TEST(ChangedSettings, AreThoseWhoseRecordSaysSo) {
  for (const RunKind kind : {RunKind::kTrain, RunKind::kSft}) {
    EXPECT_EQ(free_keys(kind), free_by_record(kind, false));
    EXPECT_EQ(free_keys(kind, LrSchedule::kCosine), free_by_record(kind, true)) << "a schedule is cut to the length";
  }
}

TEST(ChangedSettings, CompareWhatIsLearntAndNothingElse) {
  const std::set<std::string> train = free_keys(RunKind::kTrain), sft = free_keys(RunKind::kSft);
  for (const char* key :
       {"preset", "trainer.save_freq", "trainer.logger", "trainer.total_training_steps", "rollout.max_num_seqs",
        "rollout.max_num_batched_tokens", "reward.*.timeout", "actor.use_dynamic_bsz", "data.val_files",
        "plugins.isolation", "rollout.val_kwargs.n", "trainer.save_dtype"}) {
    EXPECT_TRUE(train.contains(key)) << key;
    EXPECT_TRUE(sft.contains(key)) << key;
  }
  for (const char* key : {"model.path", "model.dtype", "data.train_files", "actor.optim.lr", "actor.grad_clip",
                          "rollout.n", "rollout.dtype", "reward.*.use", "reward.*.params", "trainer.seed"}) {
    EXPECT_FALSE(train.contains(key)) << key;
    EXPECT_FALSE(sft.contains(key)) << key;
  }
  for (const char* key : {"algorithm.adv_estimator", "actor.policy_loss.loss_mode", "critic.optim.lr"}) {
    EXPECT_FALSE(train.contains(key)) << key;
    EXPECT_TRUE(sft.contains(key)) << key << " is not read by sft";
  }
  EXPECT_TRUE(train.contains("sft.train_batch_size") && train.contains("data.response_key"));
  EXPECT_FALSE(sft.contains("sft.train_batch_size") || sft.contains("data.response_key"));
}

TEST(ChangedSettings, OfSftTheCriticsScheduleDoesNotMatter) {
  RunConfig before = base_config(LrSchedule::kConstant);
  before.critic.optim.lr_scheduler_type = LrSchedule::kCosine;
  RunConfig now = before;
  now.sft.total_training_steps += 1;
  now.trainer.total_training_steps = 7;
  EXPECT_EQ(changed_settings(before, now, RunKind::kSft), "");
  EXPECT_THAT(changed_settings(before, now, RunKind::kTrain), testing::HasSubstr("trainer.total_training_steps"));
}

// Supervised rows may be switched on or off, so either run counts.
TEST(ChangedSettings, KeysOfSupervisedRowsAreComparedOnlyIfARunMixesThemIn) {
  const RunConfig before = base_config(LrSchedule::kConstant);
  RunConfig now = before;
  now.sft.max_length = 64;
  now.sft.assistant_only_loss = true;
  now.sft.completion_only_loss = false;
  now.data.response_key = "answer";
  now.data.messages_key = "chat";
  EXPECT_EQ(changed_settings(before, now, RunKind::kTrain), "");
  EXPECT_EQ(std::ranges::count(changed_settings(before, now, RunKind::kSft), '\n'), 5);
  RunConfig mixed = now;
  mixed.sft_mix.files = {"mix.jsonl"};
  for (const std::string& changed :
       {changed_settings(before, mixed, RunKind::kTrain), changed_settings(mixed, before, RunKind::kTrain)}) {
    EXPECT_EQ(std::ranges::count(changed, '\n'), 6) << changed;
    for (const char* key : {"sft.max_length", "sft.assistant_only_loss", "sft.completion_only_loss",
                            "data.response_key", "data.messages_key", "sft_mix.files"})
      EXPECT_THAT(changed, testing::HasSubstr("\n  " + std::string(key) + ": "));
  }
}

// The first group that matches a parameter counts.
TEST(ChangedSettings, TheOrderOfGroupsIsComparedToo) {
  RunConfig before;
  before.actor.optim.groups = {{"a", {{"match", "x"}}}, {"b", {{"match", "y"}}}};
  RunConfig now = before;
  EXPECT_EQ(changed_settings(before, now, RunKind::kTrain), "");
  now.actor.optim.groups = {{"b", {{"match", "y"}}}, {"a", {{"match", "x"}}}};
  EXPECT_EQ(changed_settings(before, now, RunKind::kSft), "\n  actor.optim.groups: the order a, b -> b, a");
  std::swap(now.actor.optim.groups, now.critic.optim.groups);
  before.critic.optim.groups = before.actor.optim.groups;
  before.actor.optim.groups = now.actor.optim.groups;
  EXPECT_EQ(changed_settings(before, now, RunKind::kTrain), "\n  critic.optim.groups: the order a, b -> b, a");
  EXPECT_EQ(changed_settings(before, now, RunKind::kSft), "");
}

// What a resume may switch on, it may switch off.
TEST(StatesToDrop, AreThoseOfPartsThatTheRunHasSwitchedOff) {
  StateSnapshot state;
  for (const char* name :
       {"run", "sft_mix.rows", "algorithm.replay_buffer", "rollout.over_sampling", "actor.carry_rows", "critic.optim"})
    state.scalars[name];
  const auto dropped = [&](const std::vector<std::string>& of_run, bool allow_change = true) {
    return states_to_drop(state, of_run, allow_change, "out/global_step_1");
  };
  EXPECT_EQ(dropped({"run"}).value(), (std::set<std::string>{"actor.carry_rows", "algorithm.replay_buffer",
                                                             "rollout.over_sampling", "sft_mix.rows"}))
      << "a critic's state is never dropped";
  EXPECT_EQ(dropped({"run", "rollout.over_sampling", "sft_mix.rows", "actor.carry_rows"}).value(),
            (std::set<std::string>{"algorithm.replay_buffer"}));
  EXPECT_EQ(
      dropped({"algorithm.replay_buffer", "rollout.over_sampling", "sft_mix.rows", "actor.carry_rows"}, false)->size(),
      0U);
  const Result<std::set<std::string>> refused =
      dropped({"algorithm.replay_buffer", "rollout.over_sampling", "actor.carry_rows"}, false);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().to_string(),
              testing::AllOf(testing::HasSubstr("holds state of 'sft_mix.rows', which this run does not have"),
                             testing::HasSubstr("give --allow-change to continue without it")));
}

// A step of 2 updates of 2 rows, saved after its first update, with the columns that updates read.
class UnfinishedStep : public testing::Test {
 protected:
  UnfinishedStep() {
    plan_.rows_per_step = 4;
    plan_.updates_per_step = 2;
    work_.step = 3;
    PromptBatch prompts;
    for (int64_t i = 0; i < 4; ++i) {
      prompts.prompts.emplace_back();
      Sample& sample = work_.experience.samples.rows.emplace_back();
      sample.prompt_index = i;
      sample.token_ids = {1};
    }
    work_.table = make_step_table(prompts, work_.experience.samples);
    work_.table.put<column::OldLogProb>(std::vector<float>(4));
    work_.updates.resize(1);
  }

  std::string refusal(ColumnNeeds needs = {}) {
    const Result<> checked = check_unfinished_step(work_, plan_, needs, "out/unfinished_step_3_update_1");
    return checked.ok() ? "" : checked.error().to_string();
  }

  BatchPlan plan_;
  StepWork work_;
};

// Older builds saved such a checkpoint without a column that the updates read now.
TEST_F(UnfinishedStep, OfAnotherBuildIsRefusedByTheColumnThatItLacks) {
  EXPECT_THAT(refusal(), testing::AllOf(testing::HasSubstr("saved inside step 3 by another build of Mortise: it has no "
                                                           "column advantages"),
                                        testing::HasSubstr("out/unfinished_step_3_update_1"),
                                        testing::HasSubstr("give --resume and a global_step_N folder")));
  work_.table.put<column::Advantages>(std::vector<float>(4));
  EXPECT_EQ(refusal(), "");
  EXPECT_THAT(refusal({.returns = true}), testing::HasSubstr("it has no column returns"));
  work_.table.put<column::Returns>(std::vector<float>(4));
  EXPECT_EQ(refusal({.returns = true}), "");
}

TEST_F(UnfinishedStep, ContinuesOnlyIfItsUpdatesAreStillTheSame) {
  work_.table.put<column::Advantages>(std::vector<float>(4));
  const auto is_cut_otherwise = testing::HasSubstr("with the changed settings this step would have other updates");
  EXPECT_THAT(refusal({.reference = true}), is_cut_otherwise);
  work_.table.put<column::RefLogProb>(std::vector<float>(4));
  EXPECT_EQ(refusal({.reference = true}), "");
  plan_.updates_per_step = 1;
  EXPECT_THAT(refusal(), is_cut_otherwise) << "its only update is done";
  plan_.updates_per_step = 2;
  plan_.rows_per_step = 8;
  EXPECT_THAT(refusal(), is_cut_otherwise);
  work_.step = 0;
  EXPECT_EQ(refusal(), "") << "between steps";
}

}  // namespace
}  // namespace mortise
