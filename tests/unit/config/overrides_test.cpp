// Overrides from the command line: values, lists, rewards by place, taking back, and their errors.
#include "config/overrides.h"
#include "config_test_support.h"

namespace mortise::test {
namespace {

TEST(Overrides, ValuesAreTomlOrBareText) {
  const RunConfig config = config_of("", {
                                             "actor.policy_loss.loss_mode=gspo",
                                             "rollout.n=16",
                                             "actor.optim.lr=3e-4",
                                             "actor.entropy_coeff=.5",
                                             "data.shuffle=False",
                                             "model.path=\"with space\"",
                                             "model.custom_chat_template=a=b.jinja",
                                             "data.prompt_key=1",
                                             "data.response_key=",
                                             "trainer.default_local_dir=2024-01-01",
                                         });
  EXPECT_EQ(config.actor.policy_loss.loss_mode, "gspo");
  EXPECT_EQ(config.rollout.n, 16);
  EXPECT_EQ(config.actor.optim.lr, 3e-4);
  EXPECT_EQ(config.actor.entropy_coeff, 0.5);
  EXPECT_FALSE(config.data.shuffle);
  EXPECT_EQ(config.model.path, "with space");
  EXPECT_EQ(config.model.custom_chat_template, "a=b.jinja");
  EXPECT_EQ(config.data.prompt_key, "1");
  EXPECT_EQ(config.data.response_key, "");
  EXPECT_EQ(config.trainer.default_local_dir, "2024-01-01");
}

TEST(Overrides, Lists) {
  EXPECT_THAT(config_of("", {"data.train_files=[a.jsonl, \"b,c.jsonl\"]"}).data.train_files,
              ElementsAre("a.jsonl", "b,c.jsonl"));
  EXPECT_THAT(config_of("", {"data.train_files=a.jsonl"}).data.train_files, ElementsAre("a.jsonl"));
  EXPECT_THAT(config_of("", {"trainer.logger=[]"}).trainer.logger, ElementsAre());
  EXPECT_THAT(config_of("", {"actor.optim.betas=[0.8, .9]"}).actor.optim.betas, ElementsAre(0.8, 0.9));
  EXPECT_THAT(config_of("", {"rollout.stop_token_ids=[3, 9]"}).rollout.stop_token_ids, ElementsAre(3, 9));
  EXPECT_THAT(config_of("", {"rollout.stop=</answer>"}).rollout.stop, ElementsAre("</answer>"));
  EXPECT_THAT(load_error("", {"trainer.logger=[console,]x"}), HasSubstr("is not closed, or is not TOML"));
}

TEST(Overrides, RewardsByPlace) {
  const char* two = "[[reward]]\nuse = \"regex\"\n[[reward]]\nuse = \"length\"\n";
  const RunConfig config =
      config_of(two, {"reward.1.weight=2", "reward.2.use=column", "reward.2.key=scores", "reward.0.name=r"});
  ASSERT_EQ(config.reward.size(), 3U);
  EXPECT_EQ(config.reward[0].name, "r");
  EXPECT_EQ(config.reward[1].weight, 2.0);
  EXPECT_EQ(config.reward[2].name, "column");
  EXPECT_EQ(dump_json(config.reward[2].params), R"({"key":"scores"})");
  EXPECT_EQ(config_of("", {"reward.0.use=length"}).reward.at(0).use, "length");
  EXPECT_EQ(config_of("reward = []", {"reward.0.use=length"}).reward.at(0).use, "length");
  EXPECT_EQ(config_of("", {"reward=[{use = \"length\", weight = 3}]"}).reward.at(0).weight, 3.0);
  EXPECT_EQ(config_of(two, {"~reward.0"}).reward.at(0).use, "length");
  EXPECT_TRUE(config_of(two, {"~reward"}).reward.empty());
  EXPECT_EQ(
      load_error(two, {"reward.5.weight=1"}),
      "override 'reward.5.weight=1': 'reward' has 2 entries, but no '5'; use a number from 0 to 2 (the last one adds an entry)");
  EXPECT_THAT(load_error(two, {"reward.weight=1"}), HasSubstr("'reward' has 2 entries, but no 'weight'"));
}

TEST(Overrides, LaterOnesWinAndHydrasPlusIsIgnored) {
  const RunConfig config = config_of("", {"rollout.n=1", "rollout.n=2", "+rollout.top_k=3", "++rollout.top_p=0.5"});
  EXPECT_EQ(config.rollout.n, 2);
  EXPECT_EQ(config.rollout.top_k, 3);
  EXPECT_EQ(config.rollout.top_p, 0.5);
}

TEST(Overrides, TablesMergeAndParametersCanGo) {
  const char* text = "[actor.policy_loss]\na = 1\nb = 2\n";
  EXPECT_EQ(dump_json(config_of(text, {"actor.policy_loss.b=null"}).actor.policy_loss.params), R"({"a":1})");
  EXPECT_EQ(dump_json(config_of(text, {"~actor.policy_loss.a"}).actor.policy_loss.params), R"({"b":2})");
  EXPECT_EQ(dump_json(config_of(text, {"actor.policy_loss={c = 3}"}).actor.policy_loss.params),
            R"({"a":1,"b":2,"c":3})");
  EXPECT_EQ(dump_json(config_of(text, {"actor.policy_loss.\"x.y\"=z"}).actor.policy_loss.params),
            R"({"a":1,"b":2,"x.y":"z"})");
}

TEST(Overrides, ErrorsNameTheOverride) {
  for (const char* bad :
       {"rollout.n", "=3", "rollout..n=3", ".n=3", "rollout.=3", "\"open=3", "a\"b\"c=3", "\"a\"b=3", "~",
        "rollout.n=[1", "rollout.n={a=1}", "rollout.n=\"x", "rollout.n.m=3", "~rollout.n", "rollout=3",
        "rollout.n=1\nm=2", "rollout.n=\xff", "rollout.name=[{a=1}, b]", "trainer.seed.x=1"}) {
    EXPECT_THAT(load_error("", {bad}), HasSubstr("override ")) << bad;
  }
  EXPECT_THAT(load_error("[rollout]\nn = 3", {"rollout.n.m=3"}),
              HasSubstr("'rollout.n' is the integer 3 and has no keys (set at run.toml:2:1)"));
  EXPECT_THAT(load_error("", {"~rollout.n"}), HasSubstr("'rollout.n' is not set"));
  std::string deep = "a";
  for (int i = 0; i < 1000; ++i) deep += ".a";
  EXPECT_THAT(load_error("", {deep + "=1"}), HasSubstr("too many parts"));
}

TEST(Overrides, AreToldFromFileNames) {
  EXPECT_TRUE(is_override("a.b=c"));
  EXPECT_TRUE(is_override("~a.b"));
  EXPECT_FALSE(is_override("run.toml"));
  EXPECT_FALSE(is_override("\"a=b\""));
}

}  // namespace
}  // namespace mortise::test
