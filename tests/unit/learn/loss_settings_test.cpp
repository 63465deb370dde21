// The settings of a policy loss: first the user's, then its paper's, then its defaults.
#include "learn/objective/loss_settings.h"

#include <gmock/gmock.h>

#include "support/temp_dir.h"

namespace mortise::test {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

ParamInfo number(std::string name, std::string text) {
  ParamInfo param;
  param.name = std::move(name);
  param.default_text = std::move(text);
  return param;
}

// A loss of somebody's, with verl's default range and another in its paper.
PluginInfo published_loss() {
  PluginInfo info;
  info.kind = "mortise.policy_loss/1";
  info.name = "mine";
  info.coupling = Coupling::kRow;
  info.params = {number("clip_ratio", "0.2"),
                 number("clip_ratio_low", "none"),
                 number("clip_ratio_high", "none"),
                 number("published_clip_ratio_low", "3e-4"),
                 number("published_clip_ratio_high", "4e-4"),
                 number("tau", "1"),
                 number("published_tau", "2"),
                 number("published_nothing", "5")};
  return info;
}

LoadedConfig config_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  auto loaded = load_config_text(default_env(), text, "run.toml", overrides);
  EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().to_string());
  return loaded.ok() ? *loaded : LoadedConfig{};
}

Json params_of(const std::string& text) { return policy_loss_params(published_loss(), config_of(text).config); }

TEST(LossSettings, ThePaperHoldsWhereNobodySetsAnything) {
  EXPECT_EQ(params_of(""), Json({{"clip_ratio_low", 3e-4}, {"clip_ratio_high", 4e-4}, {"tau", 2.0}}));
  const LoadedConfig loaded = config_of("");
  EXPECT_EQ(describe_loss(published_loss(), loaded),
            "policy loss mine: clip_ratio_low 0.0003, clip_ratio_high 0.0004, tau 2.0, loss_agg_mode "
            "seq-mean-token-mean");
  EXPECT_THAT(loss_remarks(published_loss(), loaded),
              ElementsAre(Pair("actor.clip_ratio_high", "mine: 0.0004"), Pair("actor.clip_ratio_low", "mine: 0.0003"),
                          Pair("actor.loss_agg_mode", "mine: seq-mean-token-mean")));
}

TEST(LossSettings, WhatTheUserSetsWins) {
  EXPECT_EQ(params_of("actor.clip_ratio = 0.2"), Json({{"clip_ratio", 0.2}, {"tau", 2.0}}))
      << "clip_ratio is both sides";
  EXPECT_EQ(params_of("actor.clip_ratio_low = 0.1"),
            Json({{"clip_ratio_low", 0.1}, {"clip_ratio_high", 4e-4}, {"tau", 2.0}}));
  EXPECT_EQ(params_of("actor.policy_loss.clip_ratio = 0.3"), Json({{"clip_ratio", 0.3}, {"tau", 2.0}}));
  EXPECT_EQ(params_of("actor.policy_loss.tau = 1.0\nactor.clip_ratio = 0.3"),
            Json({{"tau", 1.0}, {"clip_ratio", 0.3}}));
  const LoadedConfig loaded =
      config_of("[actor]\nclip_ratio = 0.2\nloss_agg_mode = \"token-mean\"\n", {"actor.clip_ratio_high=0.5"});
  EXPECT_EQ(describe_loss(published_loss(), loaded),
            "policy loss mine: clip_ratio_low 0.2 (run.toml:2:1; its own: 0.0003), clip_ratio_high 0.5 (override "
            "'actor.clip_ratio_high=0.5'; its own: 0.0004), tau 2.0, loss_agg_mode token-mean (run.toml:3:1; its own: "
            "seq-mean-token-mean)");
  EXPECT_TRUE(loss_remarks(published_loss(), loaded).empty());
}

// Who sets the paper's value is named with the place of that key.
TEST(LossSettings, APublishedValueThatIsSetIsNamedWithItsPlace) {
  const LoadedConfig loaded = config_of("[actor.policy_loss]\npublished_tau = 3.0\npublished_clip_ratio_low = 0.1\n",
                                        {"actor.policy_loss.published_clip_ratio_high=0.5"});
  EXPECT_EQ(
      describe_loss(published_loss(), loaded),
      "policy loss mine: clip_ratio_low 0.1 (run.toml:3:1; its own: 0.0003), clip_ratio_high 0.5 (override "
      "'actor.policy_loss.published_clip_ratio_high=0.5'; its own: 0.0004), tau 3.0 (run.toml:2:1; its own: 2.0), "
      "loss_agg_mode seq-mean-token-mean");
}

// A loss without a published range keeps its own default, because the engine has no default that replaces it.
TEST(LossSettings, DefaultsAreThePlugins) {
  PluginInfo info;
  info.name = "narrow";
  info.params = {number("clip_ratio", "0.05"), number("clip_ratio_c", "7")};
  const LoadedConfig loaded = config_of("");
  EXPECT_EQ(policy_loss_params(info, loaded.config), Json::object());
  EXPECT_EQ(describe_loss(info, loaded), "policy loss narrow: loss_agg_mode token-mean");
  EXPECT_THAT(loss_remarks(info, loaded),
              ElementsAre(Pair("actor.clip_ratio", "narrow: 0.05"), Pair("actor.clip_ratio_c", "narrow: 7.0"),
                          Pair("actor.loss_agg_mode", "narrow: token-mean")));
  EXPECT_EQ(policy_loss_params(info, config_of("actor.clip_ratio = 0.1").config), Json({{"clip_ratio", 0.1}}));
}

}  // namespace
}  // namespace mortise::test
