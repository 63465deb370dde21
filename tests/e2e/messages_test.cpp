// What a user does wrong: the message says what, where and what next; the exit code is the documented one; nothing is
// lost.
#include <gtest/gtest.h>

#include <vector>

#include "program.h"

namespace mortise::test {
namespace {

struct Mistake {
  const char* args;
  int code;
  std::vector<const char*> says;
};

TEST(Messages, MistakesEndInPlaceCauseAndNextStep) {
  const TaskFolder task;
  task.write("typo.toml", "base = \"run.toml\"\n\n[actor]\nppo_epoch = 2\ngrad_clip = \"much\"\n");
  task.write("bad.jsonl", "{\"prompt\": \"1+1=\"}\n{\"prompt\": \n");
  task.write("ids.jsonl", "{\"prompt_token_ids\": [2, 3, 99]}\n");
  const Mistake mistakes[] = {
      {"trian run.toml", 2, {"no command 'trian'", "train"}},
      {"train nothing.toml", 2, {"nothing.toml"}},
      {"train typo.toml", 2, {"typo.toml:4", "ppo_epoch", "ppo_epochs", "typo.toml:5", "grad_clip"}},
      {"train run.toml actor.clip_ratoi=0.1", 2, {"actor.clip_ratoi", "actor.clip_ratio"}},
      {"train run.toml model.path=nowhere", 3, {"nowhere", "config.json"}},
      {"train run.toml data.train_files=missing.jsonl", 3, {"missing.jsonl", "does not exist"}},
      {"train run.toml data.train_files=bad.jsonl", 3, {"bad.jsonl:2"}},
      {"train run.toml data.train_files=ids.jsonl data.train_batch_size=1 actor.ppo_mini_batch_size=1",
       3,
       {"ids.jsonl:1", "token id 99"}},
      {"train run.toml data.train_batch_size=9000 actor.ppo_mini_batch_size=9000", 3, {"7600 prompts", "9000"}},
      {"train run.toml actor.policy_loss.loss_mode=gspoo", 4, {"gspoo", "gspo"}},
      {"train run.toml reward.0.use=exact", 4, {"exact", "exact_match"}},
      {"train run.toml actor.policy_loss.tau=1", 2, {"actor.policy_loss.tau=1", "vanilla", "clip_ratio_c"}},
      {"train run.toml --resume out/global_step_9", 3, {"global_step_9", "manifest.json"}},
      {"plugin describe nosuch", 4, {"nosuch"}},
  };
  for (const Mistake& mistake : mistakes) {
    const Outcome outcome = task.mortise(mistake.args);
    EXPECT_EQ(outcome.code, mistake.code) << mistake.args << "\n" << outcome.output;
    for (const char* text : mistake.says)
      EXPECT_NE(outcome.output.find(text), std::string::npos) << mistake.args << "\n" << outcome.output;
  }
}

TEST(Messages, HelpEverywhere) {
  const TaskFolder task;
  for (const char* command : {"", "train ", "sft ", "eval ", "generate ", "model ", "tokenizer ", "chat ", "plugin ",
                              "objective ", "config "}) {
    const Outcome outcome = task.mortise(std::string(command) + "--help");
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_NE(outcome.output.find("usage: mortise"), std::string::npos) << command << outcome.output;
  }
}

TEST(Messages, DryRunWritesNothing) {
  const TaskFolder task;
  const Outcome outcome = task.mortise("train run.toml --dry-run");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("16 prompts x 8 samples = 128 rows"), std::string::npos) << outcome.output;
  EXPECT_FALSE(default_env().exists(task.path() / "out"));
}

}  // namespace
}  // namespace mortise::test
