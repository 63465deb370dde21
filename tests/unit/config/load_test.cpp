// Files: names, positions, all problems at once, base files, the alias prefix, open tables.
#include "config_test_support.h"

namespace mortise::test {
namespace {

TEST(Load, NothingGivesTheDefaults) {
  EXPECT_EQ(config_of(""), RunConfig{});
  ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded, load_config(default_env(), "", {}));
  EXPECT_EQ(loaded.config, RunConfig{});
  EXPECT_EQ(loaded.where("rollout.n"), "defaults");
}

TEST(Load, UnknownKeysNameTheNearest) {
  EXPECT_EQ(load_error("[actor]\n  policy_los = {}"),
            "run.toml:2:3: unknown key 'actor.policy_los'; did you mean 'actor.policy_loss'?");
  EXPECT_EQ(load_error("[rolout]\nn = 1"), "run.toml:1:2: unknown key 'rolout'; did you mean 'rollout'?");
  EXPECT_THAT(load_error("[actor]\nlr = 1e-3"), HasSubstr("did you mean 'actor.optim.lr' or 'critic.optim.lr'?"));
  EXPECT_THAT(load_error("[actor]\nbeta = 0.04"), HasSubstr("did you mean 'actor.kl_loss_coef'?")) << "TRL's name";
  EXPECT_THAT(load_error("[trainer]\nmax_steps = 4"), HasSubstr("did you mean 'trainer.total_training_updates'"));
  EXPECT_THAT(load_error("[trainer]\nqqqqqqqqqqqqqqqqq = 4"),
              HasSubstr("`mortise config explain trainer` lists its keys"));
  EXPECT_THAT(load_error("zzzzzzzzzzzzz = 4"), HasSubstr("use one of the tables: model, data"));
  EXPECT_THAT(load_error("reward.use = \"x\""),
              HasSubstr("'reward' is a list of tables, not a table; write [[reward]]"));
  EXPECT_THAT(load_error("actor = 3"), HasSubstr("'actor' is a table, not the integer 3"));
}

TEST(Load, AllProblemsAtOnceInFileOrder) {
  const std::string error = load_error(R"([rollout]
n = 0
[data]
shuffel = true
[trainer]
seed = "x"
)",
                                       {"actor.ppo_epoch=2", "model.path"});
  EXPECT_THAT(error, HasSubstr("5 problems"));
  size_t last = 0;
  for (const char* line :
       {"override 'model.path': an override must have the form key=value",
        "run.toml:2:1: 'rollout.n' must be at least 1", "run.toml:4:1: unknown key 'data.shuffel'",
        "run.toml:6:1: 'trainer.seed' must be of type integer",
        "override 'actor.ppo_epoch=2': unknown key 'actor.ppo_epoch'; did you mean 'actor.ppo_epochs'?"}) {
    const size_t at = error.find(line);
    ASSERT_NE(at, std::string::npos) << line << "\n" << error;
    EXPECT_GE(at, last) << error;
    last = at;
  }
}

TEST(Load, SyntaxErrorsHaveAPlace) {
  EXPECT_THAT(load_error("[rollout\nn = 1"), ::testing::StartsWith("run.toml:1:"));
  EXPECT_THAT(load_error("a = \"\xff\""), ::testing::StartsWith("run.toml"));
  std::string key = "a", list = "0.5";
  for (int i = 0; i < 300; ++i) key += ".a", list += ", 0.5";
  EXPECT_EQ(load_error("\n" + key + " = 1"), "run.toml:2: a key has more than 256 parts; shorten it");
  EXPECT_THAT(load_error("[algorithm.adv_params]\nx = [" + list + "]  # " + key + "\ny = \"" + key + "\""), "ok");
  EXPECT_THAT(load_error("[rollout]\n\u00e9 = 1"), ::testing::StartsWith("run.toml:2:"));
  EXPECT_EQ(config_of("[model]\npath = \"\"\"a\\\n  \u00e9\"\"\"").model.path, "a\u00e9");
  EXPECT_THAT(load_error("[rollout]\nn = 1\n[=]\nb = 1\n"), ::testing::StartsWith("run.toml:3:"));
  EXPECT_THAT(load_error("x = \"\"\"\n[=]\n\"\"\"\n[[.a]]"), ::testing::StartsWith("run.toml:4:"));
  EXPECT_THAT(load_error("[actor]\nclip_ratio = 1\nclip_ratio = 2"), ::testing::StartsWith("run.toml:3:"));
}

TEST(Load, VerlsPrefixIsAnAlias) {
  const RunConfig config = config_of(R"(
[actor_rollout_ref.actor]
ppo_epochs = 3
[actor_rollout_ref.rollout]
n = 5
[rollout]
temperature = 0.5
[actor_rollout_ref.model]
path = "m"
)",
                                     {"actor_rollout_ref.actor.policy_loss.loss_mode=gspo"});
  EXPECT_EQ(config.actor.ppo_epochs, 3);
  EXPECT_EQ(config.rollout.n, 5);
  EXPECT_EQ(config.rollout.temperature, 0.5);
  EXPECT_EQ(config.model.path, "m");
  EXPECT_EQ(config.actor.policy_loss.loss_mode, "gspo");
  EXPECT_EQ(load_error("actor.ppo_epochs = 1\nactor_rollout_ref.actor.ppo_epochs = 2"),
            "run.toml:1:7: 'actor.ppo_epochs' is set twice, here and as 'actor_rollout_ref.actor.ppo_epochs' at "
            "run.toml:2:25; remove one of them");
  EXPECT_THAT(load_error("actor_rollout_ref = 2"), HasSubstr("'actor_rollout_ref' is a table"));
}

TEST(Load, PluginParametersStandBesideTheName) {
  ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded, load(R"(
[actor.policy_loss]
loss_mode = "acme.losses/mine@^1.0"
tau = 0.5
"odd key" = [1, 2]
[algorithm]
adv_params.epsilon = 1e-4
[rollout]
name = "replay"
replay.path = "samples.jsonl"
[[reward]]
use = "column"
key = "scores"
[[reward]]
use = "acme.rewards/length@^2"
weight = 0.5
max = 3
)"));
  const RunConfig& config = loaded.config;
  EXPECT_EQ(dump_json(config.actor.policy_loss.params), R"({"tau":0.5,"odd key":[1,2]})");
  EXPECT_EQ(dump_json(config.algorithm.adv_params), R"({"epsilon":0.0001})");
  EXPECT_EQ(dump_json(config.rollout.params), R"({"path":"samples.jsonl"})");
  ASSERT_EQ(config.reward.size(), 2U);
  EXPECT_EQ(config.reward[0].name, "column");
  EXPECT_EQ(dump_json(config.reward[0].params), R"({"key":"scores"})");
  EXPECT_EQ(config.reward[1].name, "length");
  EXPECT_EQ(config.reward[1].weight, 0.5);
  EXPECT_EQ(dump_json(config.reward[1].params), R"({"max":3})");
  EXPECT_EQ(loaded.where("actor.policy_loss.tau"), "run.toml:4:1");
  EXPECT_EQ(loaded.where("actor_rollout_ref.actor.policy_loss.\"odd key\""), "run.toml:5:1");
  EXPECT_EQ(loaded.where("algorithm.adv_params.epsilon"), "run.toml:7:12");
  EXPECT_EQ(loaded.where("rollout.replay.path"), "run.toml:10:8");
  EXPECT_EQ(loaded.where("reward.0.key"), "run.toml:13:1");
  EXPECT_EQ(loaded.where("reward.1.weight"), "run.toml:16:1");
  EXPECT_EQ(loaded.where("reward.1.timeout"), loaded.where("reward.1")) << "not set: the nearest table";
  EXPECT_EQ(loaded.where("trainer.seed"), "run.toml");
  EXPECT_TRUE(loaded.is_set("reward.1.weight"));
  EXPECT_FALSE(loaded.is_set("reward.1.timeout"));
}

TEST(Load, ATableOfAnotherBackendIsRefused) {
  EXPECT_THAT(
      load_error("[rollout]\nreplay.path = \"x\""),
      HasSubstr("'rollout.replay' is neither a table of [rollout] nor the backend in use (rollout.name is 'native')"));
  EXPECT_THAT(load_error("[rollout.val_kwarg]\nn = 1"), HasSubstr("did you mean 'rollout.val_kwargs'?"));
  EXPECT_THAT(load_error("[rollout.params]\nn = 1"), HasSubstr("'rollout.params' is neither"));
  EXPECT_EQ(load_error("[rollout]\nreplay.path = \"x\"", {"~rollout.replay"}), "ok");
  EXPECT_EQ(dump_json(config_of("[rollout]\nname = \"acme.x/mine@1\"\nmine.path = \"x\"").rollout.params),
            R"({"path":"x"})");
}

TEST(Load, ARewardWithoutAPluginIsRefused) {
  EXPECT_THAT(load_error("[[reward]]\nweight = 1.0"), HasSubstr("'reward.0' names no reward plugin"));
  EXPECT_THAT(load_error("reward = [1]"), HasSubstr("'reward' is a list of tables, not a list"));
  EXPECT_THAT(load_error("reward = [{use = \"a\"}, 1]"), HasSubstr("'reward.1' must be a table, but is the integer 1"));
  EXPECT_TRUE(config_of("reward = []").reward.empty());
}

class BaseFiles : public ::testing::Test {
 protected:
  Result<LoadedConfig> load_file(const char* name, const std::vector<std::string>& overrides = {}) {
    return load_config(default_env(), dir_ / name, overrides);
  }
  TempDir dir_;
};

TEST_F(BaseFiles, TheLaterFileWinsAndPositionsStay) {
  dir_.write("base.toml", "[rollout]\nn = 4\ntemperature = 0.5\n[[reward]]\nuse = \"regex\"\n");
  dir_.write("sub/run.toml", "base = \"../base.toml\"\n[rollout]\nn = 8\n");
  ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded, load_file("sub/run.toml", {"rollout.top_k=5"}));
  EXPECT_EQ(loaded.config.rollout.n, 8);
  EXPECT_EQ(loaded.config.rollout.temperature, 0.5);
  EXPECT_EQ(loaded.config.rollout.top_k, 5);
  EXPECT_EQ(loaded.config.reward.size(), 1U);
  EXPECT_THAT(loaded.where("rollout.n"), ::testing::EndsWith("sub/run.toml:3:1"));
  EXPECT_THAT(loaded.where("rollout.temperature"), ::testing::EndsWith("base.toml:3:1"));
  EXPECT_EQ(loaded.where("rollout.top_k"), "override 'rollout.top_k=5'");
}

TEST_F(BaseFiles, RewardsReplaceRewards) {
  dir_.write("base.toml", "[[reward]]\nuse = \"regex\"\n[[reward]]\nuse = \"length\"\n");
  dir_.write("run.toml", "base = \"base.toml\"\n[[reward]]\nuse = \"column\"\n");
  ASSERT_OK_AND_ASSIGN(const LoadedConfig loaded, load_file("run.toml"));
  ASSERT_EQ(loaded.config.reward.size(), 1U);
  EXPECT_EQ(loaded.config.reward[0].use, "column");
}

TEST_F(BaseFiles, ProblemsOfAllFilesAreTold) {
  dir_.write("base.toml", "[rollout]\nnn = 4\n");
  dir_.write("run.toml", "base = \"base.toml\"\n[rollout]\ntop_p = 7\n");
  const std::string error = error_of(load_file("run.toml"));
  EXPECT_THAT(error, HasSubstr("base.toml:2:1: unknown key 'rollout.nn'"));
  EXPECT_THAT(error, HasSubstr("run.toml:3:1: 'rollout.top_p' must be"));
}

TEST_F(BaseFiles, CirclesAndMissingFilesAreRefused) {
  dir_.write("a.toml", "base = \"b.toml\"\n");
  dir_.write("b.toml", "\nbase = \"./a.toml\"\n");
  EXPECT_THAT(error_of(load_file("a.toml")), HasSubstr("b.toml:2:1: the 'base' files form a cycle"));
  dir_.write("c.toml", "base = \"none.toml\"\n");
  EXPECT_THAT(error_of(load_file("c.toml")), HasSubstr("c.toml:1:1: 'base'"));
  EXPECT_THAT(error_of(load_file("c.toml")), HasSubstr("none.toml"));
  dir_.write("d.toml", "base = 3\n");
  EXPECT_THAT(error_of(load_file("d.toml")), HasSubstr("d.toml:1:1: 'base' must be the path of a TOML file"));
  const Result<LoadedConfig> missing = load_file("missing.toml");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().kind, ErrorKind::kConfig);
  for (int i = 0; i < 20; ++i) {
    dir_.write("chain" + std::to_string(i) + ".toml", "base = \"chain" + std::to_string(i + 1) + ".toml\"\n");
  }
  EXPECT_THAT(error_of(load_file("chain0.toml")), HasSubstr("files build on each other"));
}

}  // namespace
}  // namespace mortise::test
