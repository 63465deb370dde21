// One record per key: everything that is known about a key is in keys/<section>.h, and no other file lists keys.
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "config/assign.h"
#include "config/fields.h"
#include "config/unused.h"
#include "config_test_support.h"
#include "support/environment.h"

namespace mortise::test {
namespace {

std::string text_of(const Path& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// The sources of the program by their path from the source root, without the records.
std::map<std::string, std::string> sources_without_records() {
  std::map<std::string, std::string> texts;
  const Path root = MORTISE_SOURCE_DIR;
  for (const char* folder : {"core", "apps/mortise"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string path = entry.path().lexically_relative(root).string();
      if (!path.ends_with(".cpp") && !path.ends_with(".h")) continue;
      if (!path.starts_with("core/config/keys/")) texts[path] = text_of(entry.path());
    }
  }
  return texts;
}

// The whole keys that a text has in quotes.
std::set<std::string> keys_named_by(const std::string& text) {
  std::set<std::string> named;
  for (const Field& field : all_fields()) {
    const bool is_special = field.inline_params || field.key == "reward.*.use" || field.key == "reward.*.name";
    if (is_special || field.key.find('.') == std::string::npos) continue;
    if (text.find("\"" + field.key + "\"") != std::string::npos) named.insert(field.key);
  }
  return named;
}

TEST(Records, WhatReadsTheListNamesNoKey) {
  const std::map<std::string, std::string> texts = sources_without_records();
  for (const char* file :
       {"core/config/assign.cpp", "core/config/decode.cpp", "core/config/explain.cpp", "core/config/fields.cpp",
        "core/config/schema.cpp", "core/config/show.cpp", "core/config/unused.cpp", "core/import/lines.cpp",
        "core/import/rules.cpp", "core/import/translation.cpp", "core/train/resume/resume.cpp"}) {
    ASSERT_TRUE(texts.contains(file)) << file;
    for (const std::string& key : keys_named_by(texts.at(file)))
      ADD_FAILURE() << file << " names " << key << ": say it in the record of the key";
  }
}

// Files that name many keys must be about something else than keys: rules between keys, presets, translations of another
// framework's settings that need a formula, the plugins that a config names, or the keys that take a name of the hub.
TEST(Records, NoOtherFileListsKeys) {
  // kinds.h has the table that says which keys name plugins.
  const std::set<std::string> expected{"core/config/check.cpp",
                                       "core/config/device_rules.cpp",
                                       "core/config/learning_rules.cpp",
                                       "core/config/model_rules.cpp",
                                       "core/config/presets.cpp",
                                       "core/config/sampling_rules.cpp",
                                       "core/config/tensor_rules.cpp",
                                       "core/hub/config_names.cpp",
                                       "core/import/hf_rules.cpp",
                                       "core/import/hf_run.cpp",
                                       "core/import/hf_schedule.cpp",
                                       "core/import/lora.cpp",
                                       "core/import/servers.cpp",
                                       "core/import/swift.cpp",
                                       "core/import/swift_chord.cpp",
                                       "core/import/swift_rules.cpp",
                                       "core/import/trl.cpp",
                                       "core/import/trl_rules.cpp",
                                       "core/import/verl.cpp",
                                       "core/import/verl_objective.cpp",
                                       "core/import/verl_rules.cpp",
                                       "core/import/verl_service_rules.cpp",
                                       "core/plugin/host/kinds/kinds.h",
                                       "core/train/resume/pack_lock.cpp",
                                       "core/train/run/check_plugins.cpp",
                                       "core/train/run/reuse_rules.cpp"};
  constexpr size_t kMany = 8;
  for (const auto& [file, text] : sources_without_records()) {
    const std::set<std::string> named = keys_named_by(text);
    if (expected.contains(file)) continue;
    EXPECT_LT(named.size(), kMany) << file << " lists keys: say it in their records";
  }
}

TEST(Records, FindTheRecordOfEveryValue) {
  const auto record_of = [](std::string_view key) {
    const Field* field = find_record(key);
    return field == nullptr ? std::string("none") : field->key;
  };
  EXPECT_EQ(record_of("actor.optim.lr"), "actor.optim.lr");
  EXPECT_EQ(record_of("reward.3.weight"), "reward.*.weight");
  EXPECT_EQ(record_of("reward.0.kwargs.name"), "reward.*.params");
  EXPECT_EQ(record_of("reward.0.timeout_extra"), "reward.*.params");
  EXPECT_EQ(record_of("algorithm.adv_params.epsilon"), "algorithm.adv_params");
  EXPECT_EQ(record_of("actor.policy_loss.tau_pos"), "actor.policy_loss.params");
  EXPECT_EQ(record_of("rollout.replay.path"), "rollout.params");
  EXPECT_EQ(record_of("rollout.val_kwargs.n"), "rollout.val_kwargs.n");
  EXPECT_EQ(record_of("preset"), "preset");
  EXPECT_EQ(record_of("model.no_such_key"), "none");
  EXPECT_EQ(record_of("nothing"), "none");
}

TEST(Records, CommandsThatReadAKey) {
  EXPECT_EQ(find_field("rollout.temperature")->read_by, kInGenerate);
  EXPECT_EQ(find_field("trainer.seed")->read_by, kInGenerate | kInEval);
  EXPECT_EQ(find_field("model.dtype")->read_by, kInGenerate | kInServe);
  EXPECT_EQ(find_field("model.device")->read_by, kInGenerate | kInServe);
  EXPECT_EQ(find_field("rollout.multi_turn.tools")->read_by, kInGenerate);
  EXPECT_EQ(find_field("sft.test_freq")->unread, kInTrain);
  EXPECT_EQ(find_field("sft.max_length")->unread, kInTrain);
  RunConfig run;
  EXPECT_FALSE(find_field("sft.max_length")->read_if(run));
  run.sft_mix.files = {"rows.jsonl"};
  EXPECT_TRUE(find_field("sft.max_length")->read_if(run));
  EXPECT_EQ(find_field("sft.test_freq")->read_if, nullptr);
  EXPECT_EQ(find_field("sft_mix.mu_peak")->unread, kInSft);
  EXPECT_EQ(find_field("critic.optim.lr")->unread, kInSft);
  EXPECT_EQ(find_field("actor.optim.lr")->unread, 0U);
}

TEST(Records, WhatPluginsGetFromKeys) {
  const auto offered = offered_params(config_of("", {"algorithm.gamma=0.9"}), "advantage_estimator");
  ASSERT_EQ(offered.size(), 3U);
  EXPECT_EQ(offered[1].first, "gamma");
  EXPECT_EQ(offered[1].second, Json(0.9));
  EXPECT_EQ(offered_params(RunConfig{}, "policy_loss").size(), 4U);
  EXPECT_TRUE(offered_params(RunConfig{}, "reward").empty());
}

// The warnings that ask the plugins in use: a loss `flat` with the parameter clip_ratio_low, an estimator `plain`.
std::vector<std::string> told_with_plugins(std::string_view text, const std::vector<std::string>& overrides,
                                           PluginFacts facts = {}) {
  facts.loss = "flat";
  facts.estimator = "plain";
  facts.has = [](std::string_view kind, std::string_view name) {
    return kind == "policy_loss" && name == "clip_ratio_low";
  };
  const auto loaded = load(text, overrides);
  EXPECT_TRUE(loaded.ok());
  std::vector<std::string> told;
  for (const Error& warning : unused_keys(*loaded, ConfigUse::kTrain, &facts)) told.push_back(warning.what);
  return told;
}

TEST(Records, SayWhichKeysThePluginsInUseDoNotRead) {
  EXPECT_THAT(told_with_plugins("", {"actor.clip_ratio_low=0.1", "actor.clip_ratio_high=0.1", "algorithm.gamma=0.9"}),
              ElementsAre("'algorithm.gamma' has no effect: plain has no parameter of this name",
                          "'actor.clip_ratio_high' has no effect: flat has no parameter of this name"));
  EXPECT_THAT(told_with_plugins("preset = \"rloo\"\n[actor]\nclip_ratio_c = 2\n", {}),
              ElementsAre("'actor.clip_ratio_c' has no effect: flat has no parameter of this name"))
      << "what the preset itself sets is not told";
  EXPECT_THAT(told_with_plugins("", {"ref.mixup_alpha=0.5"}), ElementsAre())
      << "rules that ask no plugin are check_config's";

  PluginFacts critic;
  critic.has_critic = true;
  EXPECT_THAT(told_with_plugins("", {"critic.ppo_epochs=2"}),
              ElementsAre("'critic' has no effect: there is no critic (plain asks for no values)"));
  EXPECT_THAT(told_with_plugins("", {"critic.ppo_epochs=2"}, critic), ElementsAre());

  PluginFacts reference;
  reference.loss_reads_reference = true;
  const std::vector<std::string> refresh{"ref.sync_steps=5", "ref.mixup_alpha=0.5"};
  EXPECT_THAT(told_with_plugins("", refresh),
              ElementsAre(HasSubstr("'ref.sync_steps' has no effect: there is no reference ("),
                          HasSubstr("'ref.mixup_alpha' has no effect: there is no reference (")));
  EXPECT_THAT(told_with_plugins("", refresh, reference), ElementsAre());
  const std::vector<std::string> full{"actor.use_kl_loss=true", "actor.kl_loss_type=full",
                                      "ref.log_prob_use_dynamic_bsz=true"};
  EXPECT_THAT(told_with_plugins("", full), ElementsAre(HasSubstr("the reference runs in the policy's own passes")));
  EXPECT_THAT(told_with_plugins("", full, reference), ElementsAre());
}

TEST(Records, SayWhichKeysTheLossesOwnAggregationDoesNotRead) {
  const std::vector<std::string> keys{"actor.loss_scale_factor=8", "actor.loss_agg_rows=all"};
  EXPECT_THAT(told_with_plugins("", keys),
              ElementsAre("'actor.loss_scale_factor' has no effect: the aggregation of flat is token-mean, not "
                          "seq-mean-token-sum-norm",
                          "'actor.loss_agg_rows' has no effect: the aggregation of flat is token-mean, which counts "
                          "tokens"));
  PluginFacts norm;
  norm.aggregation = LossAggMode::kSeqMeanTokenSumNorm;
  EXPECT_THAT(told_with_plugins("", keys, norm), ElementsAre());
  PluginFacts critic;  // the value loss reads the same keys
  critic.has_critic = true;
  EXPECT_THAT(told_with_plugins("[critic]\nloss_agg_mode = \"seq-mean-token-sum-norm\"\n", keys, critic),
              ElementsAre());
  EXPECT_THAT(
      told_with_plugins("[critic]\nloss_agg_mode = \"seq-mean-token-sum-norm\"\n", keys),
      ElementsAre(HasSubstr("'critic'"), HasSubstr("'actor.loss_scale_factor'"), HasSubstr("'actor.loss_agg_rows'")));
}

TEST(Records, NamesOfOtherFrameworks) {
  EXPECT_EQ(find_field("actor.optim.lr")->name_in(Peer::kTrl), "learning_rate");
  EXPECT_EQ(find_field("trainer.default_local_dir")->name_in(Peer::kTrl), "output_dir") << "of TrainingArguments";
  EXPECT_EQ(find_field("actor.off_policy_mask_threshold")->name_in(Peer::kSwift), "off_policy_sequence_mask_delta");
  EXPECT_EQ(find_field("actor.grad_clip")->name_in(Peer::kVerl), "") << "verl's name is ours";
}

// Shells do not replace "~" inside quotes or files, so the keys that name files and folders do it.
TEST(Records, PlacesBeginAtTheHomeFolder) {
  const Environment home("HOME", "/home/me");
  int num_places = 0;
  for (const Field& field : all_fields()) {
    if (!field.in_run || field.type_name().find("text") == std::string::npos || !field.choices.empty()) continue;
    RunConfig config;
    const FieldRef ref = field.in_run(config);
    ConfigNode node;
    node.value = "~/there";
    if (!assign_value(field, ref, node)) continue;
    const Json value = field_value(ref);
    const Json text = value.is_array() ? value[0] : value;
    EXPECT_EQ(text, field.is_place ? "/home/me/there" : "~/there") << field.key;
    num_places += field.is_place ? 1 : 0;
  }
  EXPECT_GE(num_places, 12);
  const RunConfig config = config_of("", {"trainer.default_local_dir=~/run", "model.path=~other/model"});
  EXPECT_EQ(config.trainer.default_local_dir, "/home/me/run");
  EXPECT_EQ(config.model.path, "~other/model");
}

// The names of a choice stand once: in its enum's table.
TEST(Records, ChoicesAreReadAndWrittenByTheirNames) {
  const RunConfig config = config_of("", {"actor.loss_agg_mode=prompt-mean", "trainer.logger=[tensorboard]",
                                          "algorithm.rollout_correction.rollout_is=sequence"});
  EXPECT_EQ(config.actor.loss_agg_mode, LossAggMode::kPromptMean);
  EXPECT_THAT(config.trainer.logger, ElementsAre(LogTarget::kTensorboard));
  EXPECT_EQ(config.algorithm.rollout_correction.rollout_is, WeightLevel::kSequence);
  EXPECT_TRUE(config_of("", {"actor.loss_agg_mode=auto"}).actor.loss_agg_mode.is_auto());
  EXPECT_EQ(config_of("", {"algorithm.rollout_correction.rollout_is=null"}).algorithm.rollout_correction.rollout_is,
            std::nullopt);
  RunConfig written;
  for (const Field& field : all_fields()) {
    if (!field.in_run || field.choices.empty()) continue;
    for (const std::string& choice : field.choices) {
      SCOPED_TRACE(field.key + "=" + choice);
      written = config_of("", {field.key + "=" + choice});
      const Json value = field_value(field.in_run(written));
      EXPECT_EQ(value.is_array() ? value[0] : value, Json(choice));
    }
  }
}

}  // namespace
}  // namespace mortise::test
