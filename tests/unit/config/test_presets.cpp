// Presets set what they say, below everything that is set by hand.
#include "config/presets.h"

#include "config/check.h"
#include "config/explain.h"
#include "config_test_support.h"

namespace mortise::test {
namespace {

TEST(Presets, EachLoadsAndPassesTheChecks) {
  for (const Preset& preset : all_presets()) {
    SCOPED_TRACE(preset.name);
    ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded, load("", {"preset=" + preset.name}));
    for (const std::string& setting : preset.settings) {
      const std::string key = setting.substr(0, setting.find('='));
      EXPECT_EQ(loaded.where(key), "preset " + preset.name) << key;
      EXPECT_OK(explain_key(key));
    }
    ASSERT_OK_AND_ASSIGN(const std::vector<Error> warnings, check_config(loaded, ConfigUse::kObjective));
    for (const Error& warning : warnings) ADD_FAILURE() << warning.to_string();
  }
}

TEST(Presets, LieBelowFilesAndOverrides) {
  ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded,
                       load("preset = \"gspo\"\n[actor]\nclip_ratio_low = 0.1\n", {"actor.clip_ratio_high=0.3"}));
  EXPECT_EQ(loaded.config.actor.policy_loss.loss_mode, "gspo");
  EXPECT_EQ(loaded.config.actor.clip_ratio_low, 0.1);
  EXPECT_EQ(loaded.config.actor.clip_ratio_high, 0.3);
  EXPECT_EQ(loaded.config.preset, "gspo");
  EXPECT_EQ(loaded.where("actor.policy_loss.loss_mode"), "preset gspo");
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
