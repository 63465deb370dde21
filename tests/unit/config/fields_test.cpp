// The list of keys against the struct: nothing missing, nothing twice, every entry whole.
#include <map>
#include <set>

#include "config/fields.h"
#include "config_test_support.h"
#include "foundation/base/choice.h"

namespace mortise::test {

// In place of a member's value. Not in the nameless namespace: it is declared only.
struct Anything {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};

namespace {

// Number of members of an aggregate: as many as it can be initialised with.
template <class T, class... Args>
constexpr size_t num_members() {
  if constexpr (requires { T{Args{}..., Anything{}}; }) {
    return num_members<T, Args..., Anything>();
  } else {
    return sizeof...(Args);
  }
}

size_t num_entries(const std::string& table) {
  std::set<std::string> children;  // keys and tables directly below
  const auto add = [&](const std::string& key) {
    if (key.size() <= table.size() || !key.starts_with(table) || key[table.size()] != '.') return;
    const std::string rest = key.substr(table.size() + 1);
    children.insert(rest.substr(0, rest.find('.')));
  };
  for (const Field& field : all_fields()) add(field.key);
  return children.size();
}

TEST(Fields, EveryMemberHasAnEntry) {
  EXPECT_EQ(num_entries("model"), num_members<decltype(RunConfig::model)>());
  EXPECT_EQ(num_entries("data"), num_members<decltype(RunConfig::data)>());
  EXPECT_EQ(num_entries("algorithm"), num_members<decltype(RunConfig::algorithm)>());
  EXPECT_EQ(num_entries("algorithm.kl_ctrl"), num_members<decltype(AlgorithmConfig::kl_ctrl)>());
  EXPECT_EQ(num_entries("actor"), num_members<decltype(RunConfig::actor)>());
  EXPECT_EQ(num_entries("actor.policy_loss"), num_members<decltype(ActorConfig::policy_loss)>());
  EXPECT_EQ(num_entries("actor.optim"), num_members<decltype(ActorConfig::optim)>());
  EXPECT_EQ(num_entries("ref"), num_members<decltype(RunConfig::ref)>());
  EXPECT_EQ(num_entries("rollout"), num_members<decltype(RunConfig::rollout)>());
  EXPECT_EQ(num_entries("rollout.val_kwargs"), num_members<decltype(RolloutConfig::val_kwargs)>());
  EXPECT_EQ(num_entries("reward.*"), num_members<RewardConfig>());
  EXPECT_EQ(num_entries("trainer"), num_members<decltype(RunConfig::trainer)>());
  EXPECT_EQ(num_entries("critic"), num_members<decltype(RunConfig::critic)>());
  EXPECT_EQ(num_entries("sft"), num_members<decltype(RunConfig::sft)>());
  EXPECT_EQ(num_entries("plugins"), num_members<decltype(RunConfig::plugins)>());
  EXPECT_EQ(num_entries("ranks"), num_members<decltype(RunConfig::ranks)>());
  std::set<std::string> top;  // tables and keys of the top level
  for (const Field& field : all_fields()) top.insert(field.key.substr(0, field.key.find('.')));
  EXPECT_EQ(top.size(), num_members<RunConfig>());
}

TEST(Fields, EveryEntryIsWholeAndPointsToItsOwnMember) {
  RunConfig run;
  RewardConfig reward;
  std::set<std::string> keys;
  std::map<const void*, std::string> places;
  for (const Field& field : all_fields()) {
    SCOPED_TRACE(field.key);
    EXPECT_TRUE(keys.insert(field.key).second) << "listed twice";
    EXPECT_GT(field.doc.size(), 5U);
    EXPECT_TRUE(field.doc.ends_with('.') || field.doc.ends_with(".)")) << "a full sentence";
    ASSERT_NE(field.in_run == nullptr, field.in_reward == nullptr);
    const FieldRef ref = field.in_run ? field.in_run(run) : field.in_reward(reward);
    const void* place = std::visit(
        [](const auto& value) -> const void* {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, ChoiceRef>)
            return value.member;
          else
            return value;
        },
        ref);
    const auto [existing, is_new] = places.emplace(place, field.key);
    EXPECT_TRUE(is_new) << "shares the member of " << existing->second;
  }
}

TEST(Fields, DefaultsPassTheirOwnRules) {
  for (const Field& field : all_fields()) {
    if (field.inline_params || field.key == "reward.*.use" || field.key == "reward.*.name") continue;
    if (!field.in_run) continue;
    SCOPED_TRACE(field.key);
    if (field.type_name() == "table of parameters") continue;
    const std::string value = field.default_text();
    EXPECT_EQ(load_error("", {field.key + "=" + value}), "ok");
  }
}

TEST(Fields, VerlDefaultsWhereWeSayTheyAreVerls) {
  const RunConfig config;
  EXPECT_EQ(config.data.train_batch_size, 1024);
  EXPECT_EQ(config.data.max_prompt_length, 512);
  EXPECT_EQ(config.data.max_response_length, 512);
  EXPECT_EQ(config.actor.ppo_mini_batch_size, 256);
  EXPECT_FALSE(config.actor.ppo_max_token_len_per_gpu.has_value()) << "where verl says 16384: the gradient is the same";
  EXPECT_EQ(config.actor.clip_ratio, std::nullopt) << "the loss's own: 0.2 of vanilla, as in verl";
  EXPECT_EQ(config.actor.clip_ratio_c, std::nullopt) << "the loss's own: 3 of vanilla";
  EXPECT_EQ(choice_name(config.actor.loss_agg_mode), "auto") << "token-mean but where verl forces another";
  EXPECT_EQ(config.actor.kl_loss_coef, 0.001);
  EXPECT_EQ(config.actor.kl_loss_type, "low_var_kl");
  EXPECT_EQ(config.actor.optim.lr, 1e-6);
  EXPECT_EQ(config.actor.optim.weight_decay, 0.01);
  EXPECT_EQ(config.rollout.n, 1);
  EXPECT_EQ(config.algorithm.kl_ctrl.horizon, 10000.0);
  EXPECT_EQ(config.algorithm.kl_ctrl.target_kl, 0.1);
  EXPECT_EQ(config.trainer.save_freq, -1);
}

TEST(Fields, Durations) {
  using std::chrono::milliseconds;
  EXPECT_EQ(parse_duration("500ms"), milliseconds(500));
  EXPECT_EQ(parse_duration("10s"), milliseconds(10'000));
  EXPECT_EQ(parse_duration("1.5s"), milliseconds(1'500));
  EXPECT_EQ(parse_duration("1m30s"), milliseconds(90'000));
  EXPECT_EQ(parse_duration("2h"), milliseconds(7'200'000));
  for (const char* bad : {"", "10", "s", "10 s", "-1s", "1s2m", "1s1s", "1.2.3s", "1e3s", "99999999999999999999h"}) {
    EXPECT_FALSE(parse_duration(bad)) << bad;
  }
  for (const int64_t ms : {1, 999, 1'000, 61'001, 3'600'000, 86'399'999}) {
    EXPECT_EQ(parse_duration(format_duration(milliseconds(ms))), milliseconds(ms));
  }
}

TEST(Fields, BareNames) {
  EXPECT_EQ(plugin_bare_name("gspo"), "gspo");
  EXPECT_EQ(plugin_bare_name("acme.losses/my_loss@^1.0"), "my_loss");
  EXPECT_EQ(plugin_bare_name("my_loss@1"), "my_loss");
  EXPECT_EQ(plugin_bare_name(""), "");
}

}  // namespace
}  // namespace mortise::test
