// `cmake --install` gives a program that finds its packs and its worker from where it is, wherever that is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

TEST(Install, TheInstalledProgramWorksFromAnyPrefix) {
  const TaskFolder task;
  const Path prefix = task.path() / "elsewhere";
  for (const char* component : {"programs", "packs"}) {
    const Outcome installed = run("cmake --install " + std::string(MORTISE_BINARY_DIR) + " --prefix " +
                                      prefix.string() + " --component " + component,
                                  task.path());
    ASSERT_EQ(installed.code, 0) << installed.output;
  }
  // Moved once more: nothing remembers the prefix.
  std::filesystem::rename(prefix, task.path() / "moved");
  const std::string bin = (task.path() / "moved/bin/mortise").string();
  const Outcome list = run("env -i " + bin + " plugin list", task.path());
  ASSERT_EQ(list.code, 0) << list.output;
  EXPECT_THAT(list.output, HasSubstr((task.path() / "moved/lib/mortise/packs/mortise.policy_loss.so").string()));
  EXPECT_EQ(list.output.find(std::string(MORTISE_BINARY_DIR)), std::string::npos) << list.output;
  const Outcome trained =
      run(bin + " train run.toml trainer.total_training_steps=1 plugins.isolation=process", task.path());
  EXPECT_EQ(trained.code, 0) << trained.output;
  EXPECT_THAT(trained.output, HasSubstr("workers"));
  // Without the program that has libtorch, the commands that need none still work. The others say what is missing.
  std::filesystem::remove(task.path() / "moved/bin/mortise-engine");
  for (const std::string command : {" --version", " plugin list", " config show run.toml", " plugin describe gspo",
                                    " tokenizer --help", " pack list", " report --help", " launch --help"})
    EXPECT_EQ(run(bin + command, task.path()).code, 0) << command;
  for (const std::string command : {" train run.toml", " checkpoint list out", " pack lock run.toml"}) {
    const Outcome alone = run(bin + command, task.path());
    EXPECT_EQ(alone.code, 1) << command << alone.output;
    EXPECT_THAT(alone.output, HasSubstr("bin/mortise-engine cannot be started: No such file or directory")) << command;
    EXPECT_THAT(alone.output, HasSubstr("install mortise and mortise-engine of one build in the same folder"));
  }
}

}  // namespace
}  // namespace mortise::test
