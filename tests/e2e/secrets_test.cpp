// A run with secrets in its environment, in a URL and in parameters of rewards: nothing that it writes or shows holds
// one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "program.h"
#include "python_service.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Fails its rows with what it finds that it must not find.
constexpr const char* kReward = R"(
import os
def reward(prompts, completions, **kwargs):
    assert "HF_TOKEN" not in os.environ, os.environ["HF_TOKEN"]
    assert os.environ["OPENAI_API_KEY"].endswith("key-value")
    raise RuntimeError("the service refused the key " + os.environ["OPENAI_API_KEY"])
)";

constexpr const char* kNeedsToken = R"(
import os
def reward(prompts, completions, **kwargs):
    return [len(os.environ["HF_TOKEN"]) for _ in completions]
)";

class Secrets : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1") != 0)
      GTEST_SKIP() << "no python3 for the rewards: secrets were not looked for";
    ::setenv("no_proxy", "127.0.0.1", 1);
    set("HF_TOKEN", "hf-token-value");
    set("AWS_SECRET_ACCESS_KEY", "aws-secret-value");
    set("OPENAI_API_KEY", "sk-openai-key-value");
    set("SCORE_TOKEN", "sesame");
  }
  void TearDown() override {
    for (const auto& [name, value] : secrets_) ::unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    secrets_[name] = value;
  }
  // Every file under `folder` that contains a secret, except those that the user wrote.
  [[nodiscard]] std::vector<std::string> files_with_secrets(const Path& folder) const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file() || entry.path() == folder / "run.toml" || entry.path().extension() == ".py")
        continue;
      const std::string text = default_env().read_file(entry.path()).value();
      for (const auto& [name, value] : secrets_)
        if (text.find(value) != std::string::npos) found.push_back(entry.path().string() + " holds " + name);
    }
    return found;
  }

  std::map<std::string, std::string> secrets_;
};

void use_rewards(const TaskFolder& task, const std::string& tables) {
  std::string text = default_env().read_file(task.path() / "run.toml").value();
  const std::string old = "[[reward]]\nuse = \"regex\"\npattern = \"^7\"\n";
  text.replace(text.find(old), old.size(), tables);
  task.write("run.toml", text);
}

TEST_F(Secrets, NothingThatARunWritesHoldsOne) {
  const TaskFolder task;
  const ScoreService service(task.path());
  ASSERT_TRUE(service.started());
  task.write("keys.py", kReward);
  secrets_["the URL in the config"] = "url-password";
  set("SCORE_URL", service.url("/score", "someone:hidden-password@"));
  secrets_["SCORE_URL's password"] = "hidden-password";
  const std::string quick = "retries = 0\nbatch_size = 64\n";
  use_rewards(task,
              "[plugins]\nenv = [\"OPENAI_API_KEY\"]\nmax_failed_fraction = 1.0\n"
              "[[reward]]\nuse = \"http\"\nname = \"token\"\ntoken_env = \"SCORE_TOKEN\"\n" +
                  quick + "url = \"" + service.url("/secret") + "\"\n" +
                  "[[reward]]\nuse = \"http\"\nname = \"echo\"\nweight = 0.0\ntoken_env = \"SCORE_TOKEN\"\n" + quick +
                  "url = \"" + service.url("/echo") + "\"\n" +
                  "[[reward]]\nuse = \"http\"\nname = \"login\"\nweight = 0.0\n" + quick + "url = \"" +
                  service.url("/down", "someone:url-password@") + "\"\n" +
                  "[[reward]]\nuse = \"http\"\nname = \"whole\"\nurl = \"env:SCORE_URL\"\n" + quick +
                  "[[reward]]\nuse = \"python\"\nweight = 0.0\npath = \"keys.py\"\n");
  const std::string train = "train run.toml trainer.total_training_steps=";
  const std::string where =
      " trainer.rollout_data_dir=rollouts trainer.save_freq=1 trainer.test_freq=1 data.val_files=data/val.jsonl "
      "data.val_max_samples=4 trainer.validation_data_dir=checks trainer.num_completions_to_print=2";
  const Outcome outcome = task.mortise(train + "2" + where);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(rows[0]["rewards/token/failed"].get<double>(), 0.0) << "the token arrived\n" << outcome.output;
  EXPECT_EQ(rows[0]["rewards/whole/failed"].get<double>(), 0.0) << "the URL arrived\n" << outcome.output;
  EXPECT_GT(rows[0]["rewards/python/failed"].get<double>(), 0.0);
  EXPECT_THAT(outcome.output, HasSubstr("REDACTED@127.0.0.1"));
  EXPECT_THAT(outcome.output, HasSubstr("refused the key $OPENAI_API_KEY"));
  EXPECT_THAT(outcome.output, HasSubstr("bad token: Bearer $SCORE_TOKEN"));
  // A run resumes with the same settings, although the checkpoint does not know the login. Differences are listed
  // without it.
  const Outcome resumed = task.mortise(train + "3" + where);
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  const Outcome changed = task.mortise(train + "4" + where + " reward.2.url=http://a:url-password@127.0.0.1/other");
  EXPECT_NE(changed.code, 0) << changed.output;
  // The settings that a run wrote contain no login.
  const Outcome copied = task.mortise("train out/config.resolved.toml trainer.default_local_dir=copy");
  EXPECT_THAT(copied.output, HasSubstr("a URL whose login a run removed"));
  const Outcome shown = task.mortise("config show run.toml --origins");
  for (const Outcome* one : {&outcome, &resumed, &changed, &copied, &shown})
    for (const auto& [name, value] : secrets_) EXPECT_THAT(one->output, Not(HasSubstr(value))) << name;
  EXPECT_THAT(files_with_secrets(task.path()), testing::IsEmpty());
}

TEST_F(Secrets, ARewardThatNeedsAVariableIsToldHowToGetIt) {
  const TaskFolder task;
  task.write("keys.py", kNeedsToken);
  use_rewards(task, "[[reward]]\nuse = \"python\"\npath = \"keys.py\"\n");
  const Outcome refused = task.mortise("train run.toml trainer.total_training_steps=1");
  EXPECT_EQ(refused.code, 9) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("KeyError: 'HF_TOKEN'"));
  EXPECT_THAT(refused.output, HasSubstr("add env = [\"HF_TOKEN\"] to the table [plugins]"));
  const Outcome allowed = task.mortise(
      "train run.toml trainer.total_training_steps=1 trainer.default_local_dir=b 'plugins.env=[\"HF_TOKEN\"]'");
  EXPECT_EQ(allowed.code, 0) << allowed.output;
  const Outcome value = task.mortise("train run.toml 'plugins.env=[\"HF_TOKEN=hf-token-value\"]'");
  EXPECT_EQ(value.code, 2) << value.output;
  EXPECT_THAT(value.output, HasSubstr("'HF_TOKEN' is not the name of an environment variable"));
  const Outcome unset = task.mortise(
      "train run.toml trainer.default_local_dir=c reward.0.use=http reward.0.url=env:NO_SUCH_URL '~reward.0.path'");
  EXPECT_NE(unset.code, 0);
  EXPECT_THAT(unset.output, HasSubstr("url: the environment variable NO_SUCH_URL is not set"));
}

}  // namespace
}  // namespace mortise::test
