// What is read from a run's folder.
#include "report/history.h"

#include <gmock/gmock.h>

#include <cmath>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RunHistory, ReadsMetricsSettingsPluginsAndEvents) {
  const test::TempDir dir;
  dir.write(
      "metrics.jsonl",
      "{\"step\": 1, \"reward\": 0.5, \"kl\": null}\n{\"step\": 2, \"reward\": 0.25}\n{\"step\": 2, \"reward\": 0.75}\n");
  dir.write(
      "config.resolved.toml",
      "[actor.optim]\nlr = 3e-5\n[[reward]]\nuse = \"regex\"\n[trainer]\nrollout_data_dir = \"somewhere/dump\"\n");
  dir.write("mortise.lock",
            R"({"packs": [], "uses": [{"kind": "reward", "name": "regex", "pack": "mortise.reward"}]})");
  dir.write(
      "log.txt",
      "2026-01-01T00:00:00.000+00:00 info step 1/2\n2026-01-01T00:00:01.000+00:00 warning the disk is\nnearly full\n"
      "2026-01-01T00:00:02.000+00:00 debug none\nof these\n2026-01-01T00:00:03.000+00:00 info resumed from a\n");
  dir.write("dump/1.jsonl", "{}\n");
  dir.write("dump/notes.txt", "");
  ASSERT_OK_AND_ASSIGN(const RunHistory run, read_run_history(default_env(), dir.path()));
  EXPECT_EQ(run.last_step, 2);
  const MetricSeries& reward = *run.find("reward");
  ASSERT_EQ(reward.size(), 2U) << "the line of a step that is written again replaces the first";
  EXPECT_EQ(reward[1].value, 0.75);
  EXPECT_TRUE(std::isnan(run.find("kl")->front().value));
  EXPECT_EQ(run.find("entropy"), nullptr);
  EXPECT_EQ(run.settings.at("actor.optim.lr"), "3e-05");
  EXPECT_THAT(run.changed_keys, Contains("actor.optim.lr"));
  EXPECT_THAT(run.changed_keys, Not(Contains("actor.optim.eps")));
  EXPECT_THAT(run.changed_keys, Contains("reward.0.use"));
  EXPECT_THAT(run.changed_keys, Not(Contains("reward.0.weight")));
  EXPECT_EQ(run.plugins[0]["name"], "regex");
  ASSERT_EQ(run.events.size(), 2U);
  EXPECT_EQ(run.events[0].level, "warning");
  EXPECT_EQ(run.events[0].text, "the disk is\nnearly full");
  EXPECT_EQ(run.events[1].text, "resumed from a");
  ASSERT_EQ(run.completion_files.size(), 1U);
  EXPECT_EQ(run.completion_files.at(1), dir.path() / "dump/1.jsonl");
}

TEST(RunHistory, ACopiedRunHasItsOwnCompletions) {
  const test::TempDir dir;
  for (const char* run : {"original", "copy"}) {
    dir.write(std::string(run) + "/metrics.jsonl", "{\"step\": 1}\n");
    dir.write(std::string(run) + "/dump/1.jsonl", "{}\n");
    dir.write(std::string(run) + "/config.resolved.toml",
              "[trainer]\nrollout_data_dir = \"" + (dir / "original/dump").string() + "\"\n");
  }
  ASSERT_OK_AND_ASSIGN(const RunHistory copy, read_run_history(default_env(), dir / "copy"));
  EXPECT_EQ(copy.completion_files.at(1), dir / "copy/dump/1.jsonl");
  dir.write("copy/config.resolved.toml",
            "[trainer]\nrollout_data_dir = \"" + (dir / "original/dump/").string() + "\"\n");
  ASSERT_OK_AND_ASSIGN(const RunHistory slash, read_run_history(default_env(), dir / "copy"));
  EXPECT_EQ(slash.completion_files.at(1), dir / "copy/dump/1.jsonl") << "a slash at the end changes nothing";
  dir.write("elsewhere/metrics.jsonl", "{\"step\": 1}\n");
  dir.write("elsewhere/config.resolved.toml",
            "[trainer]\nrollout_data_dir = \"" + (dir / "original/dump").string() + "\"\n");
  ASSERT_OK_AND_ASSIGN(const RunHistory elsewhere, read_run_history(default_env(), dir / "elsewhere"));
  EXPECT_EQ(elsewhere.completion_files.at(1), dir / "original/dump/1.jsonl");
}

TEST(RunHistory, OnlyMetricsAreNeeded) {
  const test::TempDir dir;
  EXPECT_THAT(test::error_of(read_run_history(default_env(), dir.path())), HasSubstr("there is no metrics.jsonl"));
  EXPECT_THAT(test::error_of(read_run_history(default_env(), dir.path() / "x")),
              HasSubstr("this folder does not exist"));
  dir.write("metrics.jsonl", "{\"step\": 1, \"reward\": 0.5}\n");
  ASSERT_OK_AND_ASSIGN(const RunHistory run, read_run_history(default_env(), dir.path() / ""));
  EXPECT_EQ(run.name, dir.path().filename().string());
  EXPECT_TRUE(run.settings.empty());
  EXPECT_EQ(run.state, "");
}

TEST(RunHistory, TheLastLineMayBeHalfWritten) {
  const test::TempDir dir;
  dir.write("metrics.jsonl", "{\"step\": 1, \"reward\": 0.5}\n{\"step\": 2, \"rew");
  dir.write("log.txt", "2026-01-01T00:00:00.000+00:00 warning whole\n2026-01-01T00:00:00.000+00:00 warning ha");
  ASSERT_OK_AND_ASSIGN(const RunHistory run, read_run_history(default_env(), dir.path()));
  EXPECT_EQ(run.last_step, 1);
  EXPECT_EQ(run.events.size(), 1U);
  EXPECT_TRUE(run.damaged.empty());
}

TEST(RunHistory, DamagedLinesAreCountedAndLeftOut) {
  const test::TempDir dir;
  const std::string zeros(40, '\0');
  dir.write("metrics.jsonl", "{\"step\": 1, \"reward\": 0.5}\n{\"step\": 2, \"rew\n" + zeros +
                                 "\n\n[1]\n{\"reward\": 0.5}\n{\"step\": 0.5}\n{\"step\": 3, \"reward\": 0.25}\n");
  ASSERT_OK_AND_ASSIGN(const RunHistory run, read_run_history(default_env(), dir.path()));
  EXPECT_EQ(run.last_step, 3);
  ASSERT_EQ(run.find("reward")->size(), 2U);
  EXPECT_EQ(run.find("reward")->back().value, 0.25);
  ASSERT_EQ(run.damaged.size(), 1U);
  EXPECT_EQ(describe(run.damaged[0]), "5 damaged lines of metrics.jsonl are left out; the first is line 2");
  dir.write("metrics.jsonl", "{\"step\": 1}\nhalf\n{\"step\": 2}\n");
  ASSERT_OK_AND_ASSIGN(const RunHistory one, read_run_history(default_env(), dir.path()));
  EXPECT_EQ(describe(one.damaged.at(0)), "line 2 of metrics.jsonl is damaged and left out");
  dir.write("metrics.jsonl", "{\"reward\": 0.5}\nhalf\n");
  const std::string error = test::error_of(read_run_history(default_env(), dir.path()));
  EXPECT_THAT(error, HasSubstr("metrics.jsonl:1: no line of this file is a row of metrics"));
}

}  // namespace
}  // namespace mortise
