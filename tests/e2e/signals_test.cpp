// SIGTERM and SIGINT: the first ends the run behind its step, the second at once. The kill at any moment is in
// kill_test.cpp.
#include <gmock/gmock.h>

#include "checkpoint/reader.h"
#include "process.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

std::string console_of(const TinyTask& task) { return default_env().read_file(task.path() / "console.txt").value(); }

// The step cannot end, because its reward hangs. Only the second signal ends the process, and the checkpoints remain.
TEST(Signals, ASecondOneEndsARunWhoseStepHangs) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const TinyTask task;
    const std::vector<std::string> settings{"trainer.total_training_steps=2", "actor.optim.lr_scheduler_type=constant"};
    std::vector<std::string> one = settings;
    one[0] = "trainer.total_training_steps=1";
    ASSERT_EQ(task.mortise("train", "out", one).code, 0);
    const std::string packs = (Path(MORTISE_BINARY_DIR) / "tests/packs/faulty").string();
    std::vector<std::string> hanging = settings;
    hanging.insert(hanging.end(), {"plugins.paths=[\"" + packs + "\"]", "reward.0.use=fussy", "~reward.0.pattern",
                                   "reward.0.hangs=true", "reward.0.mark=" + (task.path() / "hangs").string(),
                                   "reward.0.allow=[\"files\"]", "reward.0.row_timeout=1h", "reward.0.timeout=1h",
                                   "plugins.isolation=process", "--allow-change"});
    Process process(task.words("train", "out", hanging), task.path(), task.path() / "console.txt");
    // The folder is locked, the signal handlers are set, and the step's rewards are at work.
    while (!process.poll() && !default_env().exists(task.path() / "hangs")) usleep(5000);
    process.signal(signal);
    usleep(300'000);
    ASSERT_FALSE(process.poll()) << "the first signal waits for the step\n" << console_of(task);
    // More than one: within a second, or where the process has not yet taken the first, they are one request.
    for (; !process.poll(); usleep(300'000)) process.signal(signal);
    ASSERT_EQ(process.wait(), 8) << console_of(task);
    const auto found = find_newest_valid(default_env(), task.path() / "out");
    ASSERT_OK(found);
    ASSERT_TRUE(found->has_value());
    EXPECT_EQ((*found)->ref.place, (CheckpointPlace{1, {}}));
    const Outcome resumed = task.mortise("train", "out", settings);
    EXPECT_EQ(resumed.code, 0) << resumed.output;
  }
}

// While the weights are read nobody asks for a flag: the first signal ends the process, and what was saved stays.
TEST(Signals, OneEndsARunThatLoadsItsModel) {
  const TinyTask task;
  const auto settings = [](int64_t steps) {
    return std::vector<std::string>{"trainer.total_training_steps=" + std::to_string(steps),
                                    "actor.optim.lr_scheduler_type=constant"};
  };
  ASSERT_EQ(task.mortise("train", "straight", settings(2)).code, 0);
  ASSERT_EQ(task.mortise("train", "out", settings(1)).code, 0);
  const Path out = task.path() / "out";
  const size_t num_rows = rows_of(out / "metrics.jsonl").size();
  int num_loading = 0;
  for (int attempt = 0; attempt < 60 && num_loading < 3; ++attempt) {
    FolderWatch watch(out / "global_step_1/huggingface", IN_OPEN);
    Process process(task.words("train", "out", settings(2)), task.path(), task.path() / "console.txt");
    ASSERT_TRUE(watch.wait_for("model.safetensors", 1 + attempt % 2, process)) << console_of(task);
    process.signal(attempt % 2 == 0 ? SIGTERM : SIGINT);
    const int code = process.wait();
    ASSERT_EQ(code, 8) << console_of(task);
    const auto found = find_newest_valid(default_env(), out);
    ASSERT_OK(found);
    ASSERT_TRUE(found->has_value());
    if (console_of(task).find("mortise: stopped by a signal") == std::string::npos) {
      // The signal came later, in the loop, which ended behind its step.
      ASSERT_OK(remove_tree(default_env(), out));
      ASSERT_EQ(task.mortise("train", "out", settings(1)).code, 0);
      continue;
    }
    ++num_loading;
    EXPECT_EQ((*found)->ref.place, (CheckpointPlace{1, {}}));
    EXPECT_EQ(rows_of(out / "metrics.jsonl").size(), num_rows) << "no row is lost";
  }
  EXPECT_EQ(num_loading, 3);
  ASSERT_EQ(task.mortise("train", "out", settings(2)).code, 0);
  expect_same_bits(bits_of_run(out, 2), bits_of_run(task.path() / "straight", 2), "resumed");
}

TEST(Signals, SftFinishesItsUpdateSavesAndLeavesWithItsCode) {
  constexpr int64_t kSteps = 200;
  const std::vector<std::string> settings{"sft.total_training_steps=200", "trainer.save_freq=-1"};
  const TinyTask task;
  ASSERT_EQ(task.mortise("sft", "straight", settings).code, 0);
  const auto expected = bits_of_run(task.path() / "straight", kSteps);
  for (const int signal : {SIGTERM, SIGINT}) {
    const Path out = task.path() / ("stopped" + std::to_string(signal));
    Process process(task.words("sft", out.string(), settings), task.path(), task.path() / "console.txt");
    while (rows_of(out / "metrics.jsonl").size() < 2 && !process.poll()) usleep(2000);
    process.signal(signal);
    ASSERT_EQ(process.wait(), 8) << console_of(task);
    const auto found = find_newest_valid(default_env(), out);
    ASSERT_OK(found);
    ASSERT_TRUE(found->has_value());
    EXPECT_EQ(static_cast<size_t>((*found)->ref.place.step), rows_of(out / "metrics.jsonl").size());
    ASSERT_EQ(task.mortise("sft", out.string(), settings).code, 0);
    expect_same_bits(bits_of_run(out, kSteps), expected, out.string());
  }
}

}  // namespace
}  // namespace mortise::test
