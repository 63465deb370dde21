// The resolved text loads back to the same struct, for any content.
#include "config/show.h"

#include <random>

#include "config/fields.h"
#include "config_test_support.h"
#include "foundation/base/secrets.h"

namespace mortise::test {
namespace {

void expect_round_trip(const RunConfig& config) {
  const std::string text = config_to_toml(config);
  Result<LoadedConfig> again = load(text);
  ASSERT_TRUE(again.ok()) << again.error().to_string() << "\n" << text;
  EXPECT_EQ(config_to_toml(again->config), text);
  EXPECT_TRUE(again->config == config) << text;
}

TEST(Show, DefaultsRoundTripAndListEveryKey) {
  expect_round_trip(RunConfig{});
  const std::string text = "\n" + config_to_toml(RunConfig{});
  for (const Field& field : all_fields()) {
    if (!field.in_run || field.inline_params) continue;
    const std::string leaf = field.key.substr(field.key.rfind('.') + 1);
    const std::string line = leaf + " = " + field.default_text() + "\n";
    const std::string prefix = field.default_text() == "null" ? "\n# " : "\n";
    EXPECT_NE(text.find(prefix + line), std::string::npos) << line;
  }
}

TEST(Show, ParametersAndOddTextsRoundTrip) {
  RunConfig config;
  config.model.path = "quote\" back\\slash\ttab\nline \x01\x7f ü 😀 ' = # [";
  config.data.train_files = {"", "a,b", "null"};
  config.data.seed = 9007199254740993;
  config.actor.router_aux_loss_coef.reset();  // null, and its default is a number
  config.actor.clip_ratio_low = 0.1 + 0.2;
  config.actor.optim.lr = 5e-324;
  config.actor.grad_clip = 1e300;
  config.rollout.name = "acme.rollouts/my-backend@^1";
  config.rollout.params = {
      {"path", "x"}, {"dotted.key", 3.0}, {"", 1}, {"nested", {{"a", Json::array({1, 2.0, "x", Json::array()})}}}};
  config.actor.policy_loss.params = {
      {"z", 1.0}, {"a", -0.0}, {"big", int64_t{-9223372036854775807 - 1}}, {"list", {{{"k", 1}}, {{"k", 2}}}}};
  config.reward.resize(2);
  config.reward[0] = {"regex",
                      "label",
                      -2.5,
                      RewardUse::kTrain,
                      std::chrono::milliseconds(61'001),
                      std::chrono::milliseconds(50),
                      {WorkerRight::kNetwork, WorkerRight::kFiles},
                      {{"pattern", "^\\d+$"}}};
  config.reward[1] = {"p/length@1", "length", 1.0, RewardUse::kAll, std::chrono::hours(2), {}, {}, Json::object()};
  config.preset = "gspo";
  expect_round_trip(config);
}

// Every key at once, with random values inside its rules.
class RandomValue {
 public:
  RandomValue(const Field& field, std::mt19937_64& random) : field_(field), random_(random) {}
  void operator()(bool* out) const { *out = random_() % 2 == 0; }
  void operator()(int64_t* out) const { *out = integer(); }
  void operator()(double* out) const { *out = number(); }
  void operator()(std::string* out) const { *out = text(); }
  void operator()(std::chrono::milliseconds* out) const {
    *out = std::chrono::milliseconds(1 + random_() % 100'000'000);
  }
  void operator()(std::optional<bool>* out) const {
    *out = random_() % 3 == 0 ? std::nullopt : std::optional(random_() % 2 == 0);
  }
  void operator()(std::optional<int64_t>* out) const {
    *out = random_() % 3 == 0 ? std::nullopt : std::optional(integer());
  }
  void operator()(std::optional<double>* out) const {
    *out = random_() % 3 == 0 ? std::nullopt : std::optional(number());
  }
  void operator()(std::optional<std::string>* out) const {
    if (!field_.key.ends_with("preset")) *out = random_() % 3 == 0 ? std::nullopt : std::optional(text());
  }
  void operator()(std::vector<std::string>* out) const {
    out->assign(random_() % 4, "");
    for (std::string& item : *out) item = text();
  }
  void operator()(std::vector<int64_t>* out) const {
    out->assign(random_() % 4, 0);
    for (int64_t& item : *out) item = integer();
  }
  void operator()(std::vector<double>* out) const {
    for (double& item : *out) item = number();
  }
  void operator()(Json* out) const { *out = {{"number", number()}, {"text", "t"}}; }
  void operator()(const ChoiceRef& choice) const {
    std::vector<size_t> places(choice.shape == ChoiceRef::Shape::kOne ? 1 : random_() % 2, 0);
    if (choice.shape == ChoiceRef::Shape::kList) places.resize(random_() % 4);
    for (size_t& place : places) place = random_() % choice.names.size();
    choice.write(places);
  }

 private:
  int64_t integer() const {
    const auto low = static_cast<int64_t>(std::max(field_.min, -1e9));
    const auto high = static_cast<int64_t>(std::min(field_.max, 1e15));
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  double number() const {
    const double low = std::max(field_.min, -1e6);
    const double high = std::min(field_.max, 1e6);
    return std::uniform_real_distribution<double>(std::nextafter(low, high), high)(random_);
  }
  std::string text() const {
    std::string made = "x";
    for (size_t i = random_() % 6; i > 0; --i) made += "\"\\'#=\n\t a0."[random_() % 11];
    return made;
  }
  const Field& field_;
  std::mt19937_64& random_;
};

TEST(Show, RandomConfigsRoundTrip) {
  std::mt19937_64 random(20240611);
  for (int i = 0; i < 200 && !HasFailure(); ++i) {
    RunConfig config;
    config.reward.resize(random() % 3);
    for (const Field& field : all_fields()) {
      if (field.in_run) std::visit(RandomValue(field, random), field.ref(config));
      for (RewardConfig& reward : config.reward) {
        if (field.in_reward) std::visit(RandomValue(field, random), field.in_reward(reward));
      }
    }
    if (config.rollout.name.find_first_of("@/") != std::string::npos || find_field("rollout." + config.rollout.name))
      continue;
    expect_round_trip(config);
  }
}

TEST(Show, OriginsAndOnlySet) {
  ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded,
                       load("[rollout]\nn = 4\n[[reward]]\nuse = \"regex\"\n", {"actor.optim.lr=1e-3"}));
  EXPECT_EQ(config_to_toml(loaded, {.origins = true, .only_set = true}),
            "[actor.optim]\nlr = 0.001  # override 'actor.optim.lr=1e-3'\n\n"
            "[rollout]\nn = 4  # run.toml:2:1\n\n"
            "[[reward]]\nuse = \"regex\"  # run.toml:4:1\nname = \"regex\"\n");
}

TEST(Show, Json) {
  const Json json = config_to_json(
      config_of("[[reward]]\nuse = \"column\"\nkey = \"s\"\n", {"rollout.name=replay", "rollout.replay.path=p"}));
  EXPECT_EQ(json["rollout"]["replay"]["path"], "p");
  EXPECT_EQ(json["reward"][0]["key"], "s");
  EXPECT_EQ(json["reward"][0]["timeout"], "10s");
  EXPECT_EQ(json["actor"]["optim"]["betas"], Json::array({0.9, 0.999}));
  EXPECT_TRUE(json["actor"]["clip_ratio_low"].is_null());
}

// A parameter with the role `secret`, which the plugin's table tells (plugin/host/params.h).
TEST(Show, HoldsNoSecretSetting) {
  const RunConfig config = config_of("[[reward]]\nuse = \"acme/service\"\napi_key = \"open-sesame\"\n");
  EXPECT_NE(config_to_toml(config).find("open-sesame"), std::string::npos);
  add_secret("ENVIRONMENT", "acme/service");  // from a variable; keys may have its value too
  add_secret_setting("api_key", "open-sesame");
  const std::string text = config_to_toml(config);
  EXPECT_NE(text.find("api_key = \"$api_key\""), std::string::npos) << text;
  EXPECT_NE(text.find("use = \"acme/service\""), std::string::npos) << text;
  EXPECT_EQ(text.find("open-sesame"), std::string::npos) << text;
  EXPECT_EQ(config_to_json(config)["reward"][0]["api_key"], "$api_key");
}

}  // namespace
}  // namespace mortise::test
