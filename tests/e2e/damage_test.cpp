// The files of a run after a power loss or a disk failure: damaged rows of metrics, and flipped bits and truncated
// files in real checkpoints. The run continues from the undamaged files and names the damaged ones.
#include <gmock/gmock.h>

#include "checkpoint/reader.h"
#include "foundation/base/rng.h"
#include "run_bits.h"
#include "support/long_run.h"

namespace mortise::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string text_of(const Path& file) { return default_env().read_file(file).value(); }

// Lines of a text, each with its newline.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin + 1));
    begin += lines.back().size();
  }
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

// Line 2 of both files is damaged. A resume keeps a copy of the files and every other row, and gives the same bits,
// except for the lost rows.
TEST(Damage, AMetricsFileWithADamagedLineIsSetAside) {
  const TinyTask task;
  const std::vector<std::string> settings{"trainer.total_training_steps=4", "actor.optim.lr_scheduler_type=constant"};
  ASSERT_EQ(task.mortise("train", "straight", settings).code, 0);
  const auto expected = bits_of_run(task.path() / "straight", 4);
  std::vector<std::string> half = settings;
  half[0] = "trainer.total_training_steps=3";
  ASSERT_EQ(task.mortise("train", "half", half).code, 0);
  const std::vector<std::string> damages{std::string(50, '\0') + "\n", "{\"step\":2,\"upd\n"};
  for (const std::string& damage : damages) {
    ASSERT_OK(remove_tree(default_env(), task.path() / "out"));
    std::filesystem::copy(task.path() / "half", task.path() / "out", std::filesystem::copy_options::recursive);
    for (const char* file : {"out/metrics.jsonl", "out/updates.jsonl"}) {
      std::vector<std::string> lines = lines_of(text_of(task.path() / file));
      lines[1] = damage;
      ASSERT_OK(write_file(default_env(), task.path() / file, joined(lines) + "{\"step\":9,\"tor"));
    }
    const std::string before = text_of(task.path() / "out/metrics.jsonl");
    const Outcome resumed = task.mortise("train", "out", settings);
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    EXPECT_THAT(resumed.output, AllOf(HasSubstr("warning: out/metrics.jsonl:2: 1 line is damaged"),
                                      HasSubstr("The file as it was is now out/metrics.jsonl.damaged_1"),
                                      HasSubstr("warning: out/updates.jsonl:2: 1 line is damaged")));
    EXPECT_EQ(text_of(task.path() / "out/metrics.jsonl.damaged_1"), before);
    auto bits = bits_of_run(task.path() / "out", 4);
    auto without = expected;
    for (const char* file : {"metrics.jsonl", "updates.jsonl"}) {
      std::vector<std::string> lines = lines_of(without.at(file));
      lines.erase(lines.begin() + 1);
      without[file] = joined(lines);
    }
    expect_same_bits(bits, without, "resumed next to a damaged line");
  }
}

// A run that only validates adds its row after the rows of a killed run, not after half a row.
TEST(Damage, AHalfRowIsNotGluedToTheNextOne) {
  const TinyTask task;
  const std::vector<std::string> settings{"trainer.total_training_steps=2", "data.val_files=data/val.jsonl",
                                          "data.val_max_samples=2"};
  ASSERT_EQ(task.mortise("train", "out", settings).code, 0);
  const Path metrics = task.path() / "out/metrics.jsonl";
  const std::string whole = text_of(metrics);
  ASSERT_OK(write_file(default_env(), metrics, whole + "{\"step\":3,\"act"));
  std::vector<std::string> only = settings;
  only.emplace_back("trainer.val_only=true");
  const Outcome validated = task.mortise("train", "out", only);
  ASSERT_EQ(validated.code, 0) << validated.output;
  const std::string after = text_of(metrics);
  EXPECT_TRUE(after.starts_with(whole)) << after;
  EXPECT_EQ(rows_of(metrics).size(), 3U) << after;
}

TEST(Damage, AMissingMetricsFileIsTold) {
  const TinyTask task;
  std::vector<std::string> settings{"trainer.save_freq=1", "actor.optim.lr_scheduler_type=constant",
                                    "trainer.total_training_steps=2"};
  ASSERT_EQ(task.mortise("train", "out", settings).code, 0);
  ASSERT_OK(default_env().unlink(task.path() / "out/metrics.jsonl"));
  settings.back() = "trainer.total_training_steps=3";
  const Outcome resumed = task.mortise("train", "out", settings);
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  const std::string told = "metrics.jsonl is missing: the new one begins with step 3";
  EXPECT_NE(resumed.output.find(told), std::string::npos) << resumed.output;
  EXPECT_EQ(rows_of(task.path() / "out/metrics.jsonl").size(), 1U);
}

TEST(Damage, MissingRowsOfMetricsAreTold) {
  const TinyTask task;
  std::vector<std::string> settings{"trainer.save_freq=1", "actor.optim.lr_scheduler_type=constant",
                                    "trainer.total_training_steps=3"};
  ASSERT_EQ(task.mortise("train", "out", settings).code, 0);
  const Path metrics = task.path() / "out/metrics.jsonl";
  const std::string text = default_env().read_file(metrics).value();
  ASSERT_OK(write_file_atomic(default_env(), metrics, text.substr(0, text.find('\n') + 9)));
  settings.back() = "trainer.total_training_steps=4";
  const Outcome resumed = task.mortise("train", "out", settings);
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("metrics.jsonl: the rows after step 1 are gone; the next one is 4"), std::string::npos)
      << resumed.output;
  EXPECT_EQ(rows_of(metrics).size(), 2U);
}

// Every flipped bit and every cut of any file of a real checkpoint is found, and the one before it is used.
TEST(Damage, FlippedBitsAndCutFilesOfACheckpointAreFound) {
  const TinyTask task;
  const std::vector<std::string> two{"trainer.total_training_steps=2", "trainer.save_freq_updates=1"};
  ASSERT_EQ(task.mortise("train", "out", two).code, 0);
  const Path out = task.path() / "out", newest = out / "global_step_2";
  const auto expected = bits_of_run(out, 2);
  std::vector<Path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(newest)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  ASSERT_GT(files.size(), 8U);
  RandomStream random({.seed = 21});
  const int num_rounds = is_long() ? 1200 : 120;
  for (int round = 0; round < num_rounds; ++round) {
    const Path& file = files[static_cast<size_t>(round) % files.size()];
    const std::string good = text_of(file);
    std::string bad = good;
    const uint64_t at = random.next_below(good.size());
    if (round % 6 == 5)
      bad.resize(at);
    else
      bad[at] = static_cast<char>(bad[at] ^ (1 << random.next_below(8)));
    ASSERT_OK(write_file(default_env(), file, bad));
    ASSERT_OK_AND_ASSIGN(const auto found, find_newest_valid(default_env(), out));
    ASSERT_TRUE(found.has_value());
    ASSERT_EQ(found->ref.place.step, 1) << file << " at " << at;
    ASSERT_THAT(found->warnings, ElementsAre(HasSubstr("skipped a checkpoint"))) << file << " at " << at;
    if (round % (num_rounds / 3) == 0) {
      const Outcome resumed = task.mortise("train", "out", two);
      ASSERT_EQ(resumed.code, 0) << resumed.output;
      EXPECT_THAT(resumed.output, AllOf(HasSubstr("warning: skipped a checkpoint"), HasSubstr("after step 1\n")));
      expect_same_bits(bits_of_run(out, 2), expected, file.string());
    } else {
      ASSERT_OK(write_file(default_env(), file, good));
    }
  }
  EXPECT_OK(verify_checkpoint(default_env(), newest));
}

}  // namespace
}  // namespace mortise::test
