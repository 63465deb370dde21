// Presets set what they say, and override what load.h says that they override.
#include "config/presets.h"

#include <algorithm>
#include <map>

#include "config/check.h"
#include "config/explain.h"
#include "config_test_support.h"
#include "foundation/base/choice.h"

namespace mortise::test {
namespace {

TEST(Presets, EachLoadsAndPassesTheChecks) {
  for (const Preset& preset : all_presets()) {
    SCOPED_TRACE(preset.name);
    ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded, load("", {"preset=" + preset.name}));
    for (const std::string& setting : preset.settings) {
      const std::string key = setting.substr(0, setting.find('='));
      EXPECT_EQ(loaded.where(key), "preset " + preset.name) << key;
      const bool of_plugin = key.starts_with("algorithm.adv_params.") ||
                             (key.starts_with("actor.policy_loss.") && key != "actor.policy_loss.loss_mode");
      if (!of_plugin) EXPECT_OK(explain_key(key));
    }
    ASSERT_OK_AND_ASSIGN(const std::vector<Error> warnings, check_config(loaded, ConfigUse::kObjective));
    for (const Error& warning : warnings) ADD_FAILURE() << warning.to_string();
  }
}

TEST(Presets, EveryNameOfTheFieldIsThere) {
  for (const char* name :
       {"ppo", "grpo", "dr_grpo", "dapo", "bnpo", "gspo", "cispo", "sapo", "lite_ppo", "reinforce_plus_plus", "rloo"}) {
    EXPECT_NE(find_preset(name), nullptr) << name;
  }
}

// A run with only the preset has no key without effect.
TEST(Presets, GiveRunsWithoutWarnings) {
  const std::string run = "model.path = \"m\"\ndata.train_files = \"t.jsonl\"\n[[reward]]\nuse = \"exact_match\"\n";
  for (const Preset& preset : all_presets()) {
    SCOPED_TRACE(preset.name);
    ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded, load(run, {"preset=" + preset.name}));
    const RunConfig& config = loaded.config;
    const bool as_it_is = preset.name != "lite_ppo";
    EXPECT_EQ(config.rollout.temperature, as_it_is ? 1.0 : 0.99);
    EXPECT_EQ(config.rollout.top_p, as_it_is ? 1.0 : 0.99);
    EXPECT_EQ(config.rollout.top_k, as_it_is ? -1 : 100);
    EXPECT_FALSE(config.actor.use_kl_loss && config.algorithm.use_kl_in_reward);
    if (config.actor.policy_loss.loss_mode == "vanilla") {
      EXPECT_EQ(config.actor.clip_ratio_c, preset.name == "bnpo" ? 10.0 : 0.0) << "no dual clip";
    }
    ASSERT_OK_AND_ASSIGN(const std::vector<Error> warnings, check_config(loaded, ConfigUse::kTrain));
    for (const Error& warning : warnings) ADD_FAILURE() << warning.to_string();
  }
}

// A preset that compares completions of a prompt asks for several, and its text says whose number that is.
TEST(Presets, GroupsHaveSeveralCompletions) {
  const std::map<std::string, int64_t> sizes = {
      {"grpo", 64}, {"dr_grpo", 8}, {"dapo", 16}, {"bnpo", 16}, {"lite_ppo", 8},
      {"gspo", 16}, {"cispo", 16},  {"sapo", 16}, {"ppo", 1},   {"reinforce_plus_plus", 1},
      {"rloo", 4}};
  EXPECT_EQ(sizes.size(), all_presets().size());
  for (const Preset& preset : all_presets()) {
    SCOPED_TRACE(preset.name);
    const RunConfig config = config_of("", {"preset=" + preset.name});
    EXPECT_EQ(config.rollout.n, sizes.at(preset.name));
    EXPECT_EQ(std::ranges::count_if(preset.settings, [](const std::string& s) { return s.starts_with("rollout.n="); }),
              1);
    if (config.rollout.n > 1) {
      EXPECT_THAT(preset.doc, HasSubstr(std::to_string(config.rollout.n) + " completions"));
    }
  }
}

TEST(Presets, NumbersOfThePapers) {
  const auto of = [](const std::string& name) { return config_of("", {"preset=" + name}); };
  EXPECT_EQ(of("grpo").actor.kl_loss_coef, 0.04);
  EXPECT_EQ(of("grpo").rollout.n, 64);
  EXPECT_EQ(of("dapo").actor.clip_ratio_high, 0.28);
  EXPECT_EQ(of("dapo").rollout.n, 16);
  EXPECT_TRUE(of("dapo").algorithm.filter_groups.enable);
  EXPECT_EQ(of("gspo").actor.clip_ratio_low, 3e-4);
  EXPECT_EQ(of("gspo").actor.clip_ratio_high, 4e-4);
  EXPECT_EQ(of("cispo").actor.policy_loss.params, Json({{"cap", 5.0}}));
  EXPECT_EQ(of("sapo").actor.policy_loss.params, Json({{"tau_pos", 1.0}, {"tau_neg", 1.05}}));
  EXPECT_EQ(of("lite_ppo").algorithm.adv_params, Json({{"std", "batch"}}));
  EXPECT_EQ(of("bnpo").algorithm.adv_estimator, "bnpo");
  EXPECT_EQ(choice_name(of("bnpo").actor.loss_agg_mode), "seq-mean-token-sum");
  EXPECT_EQ(of("bnpo").actor.clip_ratio_high, 0.28);
  EXPECT_EQ(of("ppo").algorithm.lam, 0.95);
  EXPECT_EQ(of("reinforce_plus_plus").algorithm.kl_ctrl.kl_coef, 0.01);
  EXPECT_EQ(of("rloo").actor.policy_loss.loss_mode, "reinforce");
  EXPECT_EQ(of("rloo").algorithm.kl_ctrl.kl_coef, 0.05);
}

TEST(Presets, LieBelowFilesAndOverrides) {
  ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded,
                       load("preset = \"gspo\"\n[actor]\nclip_ratio_low = 0.1\n", {"actor.clip_ratio_high=0.3"}));
  EXPECT_EQ(loaded.config.actor.policy_loss.loss_mode, "gspo");
  EXPECT_EQ(loaded.config.actor.clip_ratio_low, 0.1);
  EXPECT_EQ(loaded.config.actor.clip_ratio_high, 0.3);
  EXPECT_EQ(loaded.config.preset, "gspo");
  EXPECT_EQ(loaded.where("actor.policy_loss.loss_mode"), "preset gspo");
  // Nor does a parameter of the estimator, which would win over the key, come from a preset.
  const RunConfig ppo = config_of("preset = \"ppo\"\n[algorithm]\nlam = 0.9\n");
  EXPECT_EQ(ppo.algorithm.lam, 0.9);
  EXPECT_EQ(ppo.algorithm.adv_params, Json::object());
}

// The command line wins over the file: `train quickstart.toml preset=gspo` is GSPO, although the file names a loss.
TEST(Presets, OnTheCommandLineOverrideTheFile) {
  const std::string file = "[actor]\nclip_ratio_low = 0.1\n[actor.policy_loss]\nloss_mode = \"vanilla\"\n";
  ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded, load(file, {"rollout.n=4", "preset=gspo"}));
  EXPECT_EQ(loaded.config.actor.policy_loss.loss_mode, "gspo");
  EXPECT_EQ(loaded.config.actor.clip_ratio_low, 3e-4);
  EXPECT_EQ(loaded.config.rollout.n, 4) << "the other overrides lie over it, wherever they stand";
  EXPECT_THAT(loaded.notes, ::testing::ElementsAre(
                                "preset gspo replaces actor.policy_loss.loss_mode = \"vanilla\" (run.toml:4:1), "
                                "actor.clip_ratio_low = 0.1 (run.toml:2:1)",
                                "preset gspo is overridden: rollout.n is 4 (override 'rollout.n=4') instead of 16"));
}

// The preset does not replace what the command line replaces in turn: one note says what the run has.
TEST(Presets, TellOnceOfAKeyThatWasOverridden) {
  ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded, load("[rollout]\nn = 8\n", {"preset=gspo", "rollout.n=4"}));
  EXPECT_EQ(loaded.config.rollout.n, 4);
  EXPECT_THAT(loaded.notes, ::testing::ElementsAre(
                                "preset gspo is overridden: rollout.n is 4 (override 'rollout.n=4') instead of 16"));
}

TEST(Presets, OfAFileLieOverItsBase) {
  const TempDir dir;
  dir.write("base.toml", "[actor.policy_loss]\nloss_mode = \"vanilla\"\n[rollout]\nn = 4\n");
  dir.write("run.toml", "base = \"base.toml\"\npreset = \"gspo\"\n[actor]\nclip_ratio_high = 0.3\n");
  dir.write("top.toml", "base = \"run.toml\"\n[rollout]\nn = 8\n");
  ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded, load_config(default_env(), dir / "run.toml", {}));
  EXPECT_EQ(loaded.config.actor.policy_loss.loss_mode, "gspo");
  EXPECT_EQ(loaded.config.rollout.n, 16);
  EXPECT_EQ(loaded.config.actor.clip_ratio_high, 0.3);
  ASSERT_EQ(loaded.notes.size(), 2U);
  EXPECT_THAT(loaded.notes[0], HasSubstr("preset gspo replaces actor.policy_loss.loss_mode = \"vanilla\" ("));
  EXPECT_THAT(loaded.notes[0], HasSubstr("rollout.n = 4 ("));
  EXPECT_THAT(loaded.notes[1], HasSubstr("preset gspo is overridden: actor.clip_ratio_high is 0.3 ("));
  ASSERT_OK_AND_ASSIGN(const LoadedConfig top, load_config(default_env(), dir / "top.toml", {}));
  EXPECT_EQ(top.config.rollout.n, 8) << "a file over the one that names the preset";
  // A preset that says what the files say is not worth a word.
  ASSERT_OK_AND_ASSIGN(const LoadedConfig same, load("preset = \"gspo\"\nrollout.n = 16\n"));
  EXPECT_TRUE(same.notes.empty());
}

// An override can undo what a preset set, as it can undo what a file set.
TEST(Presets, KeysCanBeTakenBack) {
  const RunConfig config = config_of("", {"preset=gspo", "~actor.clip_ratio_low"});
  EXPECT_EQ(config.actor.clip_ratio_low, std::nullopt);
  EXPECT_EQ(config.actor.clip_ratio_high, 4e-4);
  const std::vector<std::string> twice = {"~rollout.n"};
  EXPECT_FALSE(load("preset = \"null\"", twice).ok());
}

TEST(Presets, OneOfTheCorrectionChoosesItsLossOverTheRunsOwn) {
  const std::string text = "preset = \"grpo\"\nalgorithm.rollout_correction.preset = \"bypass_pg_is\"\n";
  ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded, load(text));
  EXPECT_EQ(loaded.config.actor.policy_loss.loss_mode, "reinforce");
  ASSERT_OK(check_config(loaded, ConfigUse::kObjective));
  EXPECT_EQ(config_of(text + "actor.policy_loss.loss_mode = \"gspo\"\n").actor.policy_loss.loss_mode, "gspo");
}

TEST(Presets, AnOverrideTakesAnother) {
  const RunConfig config = config_of("preset = \"gspo\"", {"preset=dr_grpo"});
  EXPECT_EQ(config.actor.policy_loss.loss_mode, "vanilla");
  EXPECT_FALSE(config.algorithm.norm_adv_by_std_in_grpo);
  EXPECT_EQ(config_of("preset = \"gspo\"", {"preset=null"}), RunConfig{});
}

TEST(Presets, UnknownOnesAreRefused) {
  EXPECT_THAT(load_error("preset = \"gsp\""),
              ::testing::StartsWith("run.toml:1:1: there is no preset 'gsp'; did you mean 'gspo'"));
  EXPECT_THAT(load_error("preset = 3"), HasSubstr("'preset' must be of type text or null"));
}

}  // namespace
}  // namespace mortise::test
