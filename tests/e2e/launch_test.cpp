// `mortise launch` and torchrun: the processes of a run, its logs, its exit codes.
#include <gmock/gmock.h>

#include <cstdlib>

#include "process.h"
#include "run_table.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

// A short run of two processes, each with some micro-batches.
std::string train_words(const TinyTask& task, const std::string& out, int steps,
                        const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings{"actor.ppo_max_token_len_per_gpu=20", "actor.optim.lr_scheduler_type=constant",
                                    "trainer.total_training_steps=" + std::to_string(steps)};
  settings.insert(settings.end(), more.begin(), more.end());
  std::vector<std::string> words = task.words("train", out, settings);
  words.erase(words.begin());  // the program
  std::string line;
  for (const std::string& word : words) line += " '" + word + "'";
  return line;
}

TEST(Launch, SaysWhatIsWrongWithItsWords) {
  const TempDir dir;
  const auto fails = [&](const std::string& words, const std::string& text) {
    const Outcome outcome = run(program() + " launch " + words, dir.path());
    EXPECT_EQ(outcome.code, 2) << words << "\n" << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text)) << words;
  };
  fails("train run.toml", "--nproc is not a number from 1 to 1024");
  fails("--nproc 0 train run.toml", "--nproc is not a number from 1 to 1024");
  fails("--nproc two train run.toml", "--nproc");
  fails("--nproc 2", "no command was given");
  fails("--nproc 2 --", "no command was given");
  fails("--nproc 2 --master-port 70000 train run.toml", "--master-port is not a port");
  fails("--nprocs 2 train run.toml", "--nproc");
  const Outcome help = run(program() + " launch --help", dir.path());
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, HasSubstr("usage: mortise launch --nproc N"));
}

// Several processes that each do the whole work are never what was meant.
TEST(Launch, CommandsThatAreOneProcessRefuseToBeRanks) {
  const TempDir dir;
  const std::string two = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 ";
  for (const char* command : {"plugin list", "generate", "config explain actor", "launch --nproc 2 train run.toml"}) {
    const Outcome outcome = run(two + program() + " " + command, dir.path());
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_THAT(outcome.output, HasSubstr("this is rank 1 of 2 by the environment (torchrun), but `mortise "))
        << command;
  }
  const Outcome launched = run(program() + " launch --nproc 2 plugin list", dir.path());
  EXPECT_EQ(launched.code, 2) << launched.output;
  EXPECT_THAT(launched.output, HasSubstr("`mortise plugin` runs as one process"));
  EXPECT_THAT(launched.output, HasSubstr("ended with exit code 2; the log of rank 1 is in "));
}

TEST(Launch, OneRankIsTheCommandItself) {
  const TempDir dir;
  const Outcome alone = run(program() + " plugin list", dir.path());
  const Outcome launched = run(program() + " launch --nproc 1 -- plugin list", dir.path());
  EXPECT_EQ(launched.code, 0);
  EXPECT_EQ(launched.output, alone.output);
}

// Each rank has workers of its own.
TEST(Launch, LossesAndEstimatorsInWorkersGiveTheSameBits) {
  const TinyTask task;
  constexpr int kSteps = 3;
  for (const std::string isolation : {"none", "process"}) {
    const std::string words = train_words(task, "out_" + isolation, kSteps, with_isolation(isolation));
    const Outcome outcome = run(program() + " launch --nproc 2" + words, task.path());
    ASSERT_EQ(outcome.code, 0) << outcome.output;
  }
  for (const char* log : {"log.txt", "rank_1.log"}) {
    const std::string told = default_env().read_file(task.path() / "out_process" / log).value();
    for (const char* kind : {"policy_loss ", "kl_estimator kl@", "kl_estimator low_var_kl@", "advantage_estimator "})
      EXPECT_THAT(told, testing::ContainsRegex(std::string(kind) + "[^\n]*: runs in a worker")) << log;
  }
  expect_same_bits(bits_of_run(task.path() / "out_process", kSteps), bits_of_run(task.path() / "out_none", kSteps),
                   "in workers");
}

TEST(Launch, TrainsOnTwoRanks) {
  const TinyTask task;
  const Outcome half = run("RANK=1 MASTER_ADDR=127.0.0.1 " + program() + train_words(task, "out", 2), task.path());
  EXPECT_EQ(half.code, 2) << half.output;
  EXPECT_THAT(half.output, HasSubstr("WORLD_SIZE is not set, but other variables of torchrun are"));
  const Outcome outcome =
      run(program() + " launch --nproc 2 --log-dir logs" + train_words(task, "out", 2), task.path());
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(rows_of(task.path() / "out/metrics.jsonl").size(), 2U);
  EXPECT_TRUE(default_env().exists(task.path() / "logs/rank_1.log"));
  EXPECT_FALSE(default_env().exists(task.path() / "logs/rank_0.log")) << "rank 0 writes to the terminal";
}

// $p is the launcher; its children are the ranks, in order.
TEST(Launch, ARankThatIsKilledIsNamedAndEndsTheRun) {
  const TinyTask task;
  const Outcome outcome = run(program() + " launch --nproc 2 --log-dir logs" + train_words(task, "out", 100000) +
                                  " & p=$!; until [ -s out/metrics.jsonl ] || ! kill -0 $p; do sleep 0.05; done; "
                                  "set -- $(cat /proc/$p/task/$p/children); kill -9 $2; wait $p",
                              task.path());
  EXPECT_EQ(outcome.code, 7) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("was killed or crashed in '"));
  EXPECT_THAT(outcome.output, HasSubstr("rank 1 was killed by signal 9 (Killed); the log of rank 1 is in logs"));
}

TEST(Launch, SignalsReachAllRanks) {
  const TinyTask task;
  const Outcome outcome = run(program() + " launch --nproc 2 --log-dir logs" + train_words(task, "out", 100000) +
                                  " & p=$!; until [ -s out/metrics.jsonl ] || ! kill -0 $p; do sleep 0.05; done; "
                                  "kill -INT $p; wait $p",
                              task.path());
  EXPECT_EQ(outcome.code, 8) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("stopped by a signal"));
}

// The launcher of the pinned PyTorch starts the program as it is.
TEST(Launch, TorchrunStartsTheProgram) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: torchrun did not start the program";
  const TinyTask task;
  const std::string torchrun =
      std::string(python) + " -m torch.distributed.run --no-python --standalone --nproc-per-node 2 ";
  const Outcome outcome = run(torchrun + program() + train_words(task, "by_torchrun", 2), task.path());
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(rows_of(task.path() / "by_torchrun/metrics.jsonl").size(), 2U);
}

}  // namespace
}  // namespace mortise::test
