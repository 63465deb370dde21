// `mortise config ...` as a person types it: output, errors, exit codes.
#include "config_command.h"
#include "config_test_support.h"

namespace mortise::test {
namespace {

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

// In place of the plugins: one that has tau.
Result<std::string> explain_tau(const std::string& key, const std::string& config_file, bool json) {
  if (key.ends_with(".tau")) return key + " of " + config_file + (json ? " as JSON" : "");
  if (key.ends_with(".tua")) return Error{ErrorKind::kConfig, "no parameter", "", "did you mean 'tau'?"};
  return std::string();
}

Outcome run(const std::vector<std::string>& args) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = run_config(args, explain_tau);
  std::string out = ::testing::internal::GetCapturedStdout();
  return {code, std::move(out), ::testing::internal::GetCapturedStderr()};
}

TEST(ConfigCommand, ShowPrintsWhatLoadsBack) {
  const TempDir dir;
  const std::string file = dir.write("run.toml", "[rollout]\nn = 4\n").string();
  const Outcome shown = run({"show", file, "actor.optim.lr=1e-3", "--preset", "gspo"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  const RunConfig config = config_of(shown.out);
  EXPECT_EQ(config.rollout.n, 16) << "the preset of the command line beats the file";
  EXPECT_EQ(config.actor.optim.lr, 1e-3);
  EXPECT_EQ(config.actor.policy_loss.loss_mode, "gspo");
  const Outcome set = run({"show", file, "--set", "--origins"});
  EXPECT_EQ(set.out, "[rollout]\nn = 4  # " + file + ":2:1\n");
  EXPECT_THAT(run({"show", "--json"}).out, HasSubstr("\"train_batch_size\": 1024"));
}

TEST(ConfigCommand, ShowChecksOnDemand) {
  EXPECT_EQ(run({"show"}).code, 0);
  const Outcome checked = run({"show", "--check", "train"});
  EXPECT_EQ(checked.code, 2);
  EXPECT_THAT(checked.err, HasSubstr("'model.path' is not set"));
  EXPECT_THAT(run({"show", "--check", "objective", "actor.loss_agg_mode=token-mean", "actor.loss_scale_factor=2"}).err,
              HasSubstr("warning: override 'actor.loss_scale_factor=2': 'actor.loss_scale_factor' has no effect"));
}

TEST(ConfigCommand, ErrorsAreConfigErrors) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{{},
                                                                                    {"shwo"},
                                                                                    {"show", "missing.toml"},
                                                                                    {"show", "--colour"},
                                                                                    {"show", "--preset"},
                                                                                    {"show", "a.toml", "b.toml"},
                                                                                    {"show", "--check", "flight"},
                                                                                    {"explain", "rollout.m"},
                                                                                    {"explain", "a", "b"},
                                                                                    {"explain", "a", "--config"},
                                                                                    {"schema", "x"}}) {
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 2) << (args.empty() ? "nothing" : args.back());
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err, "");
  }
}

TEST(ConfigCommand, ImportWritesAFileThatLoads) {
  const TempDir dir;
  const std::string from = dir.write("grpo.yaml", "learning_rate: 3e-6\nreward_funcs: [my.rewards.good]\n").string();
  const std::string to = (dir.path() / "run.toml").string();
  const Outcome printed = run({"import", "--from", "trl", from});
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_EQ(config_of(printed.out).actor.optim.lr, 3e-6);
  const Outcome written = run({"import", "--from", "trl", from, "--output", to, "--processes", "2"});
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_EQ(written.out, "");
  const Outcome shown = run({"show", to, "--check", "train", "model.path=m", "data.train_files=t.jsonl"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(shown.err, "") << "no warnings";
  EXPECT_EQ(config_of(shown.out).data.train_batch_size, 2);
  EXPECT_THAT(run({"import", "--from", "trl", "--list"}).out, HasSubstr("learning_rate -> actor.optim.lr"));
  const std::string before = default_env().read_file(to).value();
  const Outcome again = run({"import", "--from", "trl", from, "--output", to});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("the file of --output exists"));
  EXPECT_EQ(default_env().read_file(to).value(), before);
  EXPECT_EQ(run({"import", "--from", "trl", from, "--output", to, "--overwrite"}).code, 0);
  EXPECT_NE(default_env().read_file(to).value(), before);
}

TEST(ConfigCommand, ImportNamesServers) {
  const TempDir dir;
  const std::string from = dir.write("grpo.yaml", "use_vllm: true\n").string();
  const Outcome two = run({"import", "--from", "trl", from, "--servers", "http://a:8000/, http://b:8000"});
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(config_of(two.out).rollout.params["url"], "http://a:8000, http://b:8000");
  for (const char* list : {"a:8000", "http://a:8000,", ""}) {
    const Outcome refused = run({"import", "--from", "trl", from, "--servers", list});
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("is not the address of a server")) << list;
  }
  EXPECT_THAT(run({"import", "--from", "trl", from, "--servers"}).err, HasSubstr("--servers needs a value"));
}

TEST(ConfigCommand, ImportSaysWhatIsWrong) {
  const TempDir dir;
  const std::string from = dir.write("grpo.yaml", "load_in_4bit: true\n").string();
  const Outcome refused = run({"import", "--from", "trl", from, "--output", (dir.path() / "run.toml").string()});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("grpo.yaml:1:1: 'load_in_4bit = true' is not supported"));
  EXPECT_FALSE(default_env().exists(dir.path() / "run.toml"));
  EXPECT_THAT(run({"import", from}).err, HasSubstr("--from is not given"));
  EXPECT_THAT(run({"import", "--from", "foo", "missing.yaml"}).err, HasSubstr("there is no import from 'foo'"));
  EXPECT_THAT(run({"import", "--from", "trl"}).err, HasSubstr("give one file"));
  EXPECT_THAT(run({"import", "--from", "trl", from, "--output", from}).err, HasSubstr("the file that is read"));
  EXPECT_THAT(run({"import", "--from", "trl", from, "--processes", "two"}).err, HasSubstr("needs a number"));
  EXPECT_THAT(run({"import", "--from", "prime", from}).err, HasSubstr("use one of: trl, verl, swift"));
  EXPECT_EQ(run({"import", "--from", "trl", "missing.yaml"}).code, 2);
}

TEST(ConfigCommand, ExplainAndSchemaAndHelp) {
  EXPECT_THAT(run({"explain", "rollout.n"}).out, ::testing::StartsWith("rollout.n\n"));
  EXPECT_THAT(run({"explain", "rollout.n"}).out, HasSubstr("in verl: actor_rollout_ref.rollout.n\n"));
  EXPECT_THAT(run({"explain", "trainer.save_freq"}).out, HasSubstr("in verl: trainer.save_freq\n"));
  EXPECT_THAT(run({"explain", "reward[0].weight"}).out, ::testing::StartsWith("reward.*.weight\n"));
  EXPECT_THAT(run({"explain", "[[reward]]"}).out, ::testing::StartsWith("[[reward]]\n"));
  EXPECT_THAT(run({"explain"}).out, HasSubstr("[trainer]"));
  EXPECT_THAT(run({"explain", "preset"}).out, HasSubstr("preset = \"dr_grpo\""));
  EXPECT_EQ(run({"explain", "rollout.n", "--json"}).out.front(), '{');
  EXPECT_EQ(run({"explain", "actor.policy_loss.tau", "--config", "run.toml"}).out,
            "actor.policy_loss.tau of run.toml\n");
  EXPECT_EQ(run({"explain", "--json", "reward.0.tau"}).out, "reward.0.tau of  as JSON\n");
  EXPECT_THAT(run({"explain", "actor.policy_loss.tua"}).err, HasSubstr("did you mean 'tau'?"));
  EXPECT_THAT(run({"explain", "actor.policy_loss.loss_mod"}).err, HasSubstr("'actor.policy_loss.loss_mode'"));
  ASSERT_OK_AND_ASSIGN(const Json schema, parse_json(run({"schema"}).out, "schema"));
  EXPECT_EQ(schema["type"], "object");
  EXPECT_EQ(run({"show", "--help"}).code, 0);
  EXPECT_THAT(run({"--help"}).out, HasSubstr("usage: mortise config"));
}

}  // namespace
}  // namespace mortise::test
