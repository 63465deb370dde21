// The engine that tests get from the server (support/engine): it is a fork, has what a new program would have, ends with
// the process that asked for it, and is a new program where a fork could differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "process.h"
#include "run_bits.h"
#include "support/processes.h"

namespace mortise::test {
namespace {

// The file that a process runs.
Path file_of(const Process& process) {
  std::error_code ended;
  return std::filesystem::read_symlink("/proc/" + std::to_string(process.pid()) + "/exe", ended);
}

class SharedEngine : public testing::Test {
 protected:
  [[nodiscard]] std::vector<std::string> endless_run() const {
    return task_.words("train", "out", {"trainer.total_training_steps=100000"});
  }
  [[nodiscard]] Path console() const { return task_.path() / "console.txt"; }
  bool has_begun() const {
    return comes_true([&] { return !rows_of(task_.path() / "out/metrics.jsonl").empty(); });
  }

  TinyTask task_;
};

TEST_F(SharedEngine, IsAForkThatEndsWithTheProcessThatAskedForIt) {
  Process process(endless_run(), task_.path(), console());
  ASSERT_TRUE(has_begun()) << default_env().read_file(console()).value();
  EXPECT_EQ(file_of(process), std::string(MORTISE_BINARY_DIR) + "/test_bin/mortise-engine");  // it waits for the fork
  EXPECT_EQ(process.kill_and_wait(), -SIGKILL);
  // Its lock on the folder is free: the engine does not run any more.
  const Outcome resumed = task_.mortise("train", "out", {"trainer.total_training_steps=1"});
  EXPECT_THAT(resumed.output, testing::Not(testing::HasSubstr("another run is writing into this folder")));
}

TEST_F(SharedEngine, GetsSignalsAndGivesItsExitCode) {
  Process process(endless_run(), task_.path(), console());
  ASSERT_TRUE(has_begun()) << default_env().read_file(console()).value();
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 8) << default_env().read_file(console()).value();
}

TEST_F(SharedEngine, HasTheWordsVariablesFolderAndDescriptors) {
  const Outcome answered =
      run("mkdir sub && cd sub && MORTISE_PLUGINS_DISABLE=nobody." + std::string(200, 'x') + " " + program() +
              " generate --model ../model --prompts /dev/fd/7 --out g.jsonl rollout.response_length=2 "
              "7<../data/val.jsonl && wc -l <g.jsonl && wc -l <../data/val.jsonl",
          task_.path());
  EXPECT_EQ(answered.code, 0) << answered.output;
  EXPECT_EQ(rows_of(task_.path() / "sub/g.jsonl").size(), rows_of(task_.path() / "data/val.jsonl").size());
}

TEST_F(SharedEngine, IsANewProgramUnderOtherLimitsOrVariablesThatLibrariesRead) {
  for (const char* condition : {"ulimit -c 0; ulimit -f 1000000;", "export MALLOC_ARENA_MAX=1;", "umask 077;"}) {
    std::string line = condition + std::string(" exec");
    for (const std::string& word : endless_run()) line += " '" + word + "'";
    Process process({"/bin/sh", "-c", line}, task_.path(), console());
    EXPECT_TRUE(comes_true([&] { return file_of(process) == program("mortise-engine"); })) << condition;
  }
}

}  // namespace
}  // namespace mortise::test
