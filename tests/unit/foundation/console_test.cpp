// The lines that a run prints, and the rows of its metrics files.
#include <gmock/gmock.h>

#include <cmath>

#include "foundation/base/log.h"
#include "foundation/metrics/sinks.h"
#include "support/fault_env.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using ::testing::HasSubstr;

MetricRow row_of(int64_t step, double reward) {
  return {{{"step", step}}, {{"critic/score/mean", reward}, {"perf/throughput", 8412.3}, {"timing_s/step", 0.41}}};
}

TEST(ProgressText, ShowsWhatTheRowHas) {
  EXPECT_EQ(progress_text(row_of(12, 0.5321), 300, 125),
            "step 12/300  2m05s left  reward 0.532  0.41 s/step  8,412 tok/s");
  EXPECT_EQ(progress_text({{{"step", 1}}, {}}, 0, -1), "step 1");
  EXPECT_EQ(progress_text({{{"step", 9}}, {}}, 9, 0), "step 9/9") << "nothing is left";
  EXPECT_THAT(progress_text({{{"step", 1}}, {{"val-core/add/acc/mean@1", 0.91}}}, 0, -1),
              HasSubstr("val-core/add/acc/mean@1 0.910"));
}

TEST(ConsoleSink, PlainLinesWithoutATerminal) {
  const test::TempDir dir;
  ASSERT_OK(log_init({.console_level = LogLevel::kInfo, .file = dir / "log.txt", .force_plain = true}));
  testing::internal::CaptureStderr();
  const auto sink =
      make_console_sink(default_env(), {.total_steps = 5, .first_step = 0, .plain_every = 2, .plain_every_s = 0});
  for (int64_t step = 1; step <= 5; ++step) ASSERT_OK(sink->write(row_of(step, 0.1)));
  ASSERT_OK(sink->close());
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::Not(HasSubstr("step 1/5")));
  EXPECT_THAT(text, HasSubstr("step 2/5"));
  EXPECT_THAT(text, testing::Not(HasSubstr("step 3/5")));
  EXPECT_THAT(text, HasSubstr("step 5/5"));  // the last one always
  EXPECT_THAT(text, HasSubstr(" left"));
  EXPECT_THAT(text, testing::Not(HasSubstr("\x1b")));
  const std::string file = dir.read("log.txt");
  for (int64_t step = 1; step <= 5; ++step)
    EXPECT_THAT(file, HasSubstr("info step " + std::to_string(step) + "/5")) << "the file has every step";
}

TEST(JsonlSink, FullPrecisionAndKeysFirst) {
  const test::TempDir dir;
  ASSERT_OK_AND_ASSIGN(const auto sink, make_jsonl_sink(default_env(), dir / "updates.jsonl", false));
  ASSERT_OK(
      sink->write({{{"update", 14}, {"step", 7}}, {{"loss", 0.1}, {"lr", 1.0}, {"kl", std::nan("")}, {"x", 1.0 / 3}}}));
  ASSERT_OK(sink->close());
  EXPECT_EQ(dir.read("updates.jsonl"),
            "{\"update\":14,\"step\":7,\"loss\":0.1,\"lr\":1.0,\"kl\":null,\"x\":0.3333333333333333}\n");
}

// A folder that somebody cleaned up: rows are neither written to a file without a name, nor dropped.
TEST(JsonlSink, ARemovedFileIsToldAndMadeAgain) {
  const test::TempDir dir;
  const Path run = dir / "run", path = run / "metrics.jsonl";
  ASSERT_OK(default_env().create_dirs(run));
  ASSERT_OK_AND_ASSIGN(const auto sink, make_jsonl_sink(default_env(), path, false));
  const auto write = [&](int64_t step) { return sink->write({{{"step", step}}, {}}); };
  ASSERT_OK(write(1));
  ASSERT_OK(default_env().unlink(path));
  testing::internal::CaptureStderr();
  ASSERT_OK(write(2));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("was removed or renamed while the run writes it"));
  EXPECT_EQ(dir.read("run/metrics.jsonl"), "{\"step\":2}\n");
  ASSERT_OK(remove_tree(default_env(), run));
  EXPECT_EQ(write(3).error().kind, ErrorKind::kDisk);
  ASSERT_OK(default_env().create_dirs(run));
  ASSERT_OK(write(4));
  EXPECT_EQ(dir.read("run/metrics.jsonl"), "{\"step\":3}\n{\"step\":4}\n");
  ASSERT_OK(sink->close());
}

TEST(JsonlSink, AFileThatIsRemovedWhileTheDiskIsFullGetsTheRowsThatWait) {
  const test::TempDir dir;
  test::FaultEnv env(default_env());
  ASSERT_OK_AND_ASSIGN(const auto sink, make_jsonl_sink(env, dir / "metrics.jsonl", false));
  const auto write = [&](int64_t step) { return sink->write({{{"step", step}}, {}}); };
  ASSERT_OK(write(1));
  env.disk_full_after(3);
  EXPECT_FALSE(write(2).ok());
  ASSERT_OK(default_env().unlink(dir / "metrics.jsonl"));
  EXPECT_FALSE(write(3).ok());
  env.heal();
  ASSERT_OK(write(4));
  ASSERT_OK(sink->close());
  EXPECT_EQ(dir.read("metrics.jsonl"), "{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n");
}

// Rows that did not fit follow as soon as there is room, after complete lines only.
TEST(JsonlSink, AFullDiskLosesNoRow) {
  const std::string three = "{\"step\":1,\"x\":1.0}\n{\"step\":2,\"x\":2.0}\n{\"step\":3,\"x\":3.0}\n";
  for (uint64_t room = 0; room < three.size(); ++room) {
    const test::TempDir dir;
    test::FaultEnv env(default_env());
    ASSERT_OK_AND_ASSIGN(const auto sink, make_jsonl_sink(env, dir / "metrics.jsonl", false));
    env.disk_full_after(room);
    Result<> last;
    for (int64_t step = 1; step <= 3; ++step)
      last = sink->write({{{"step", step}}, {{"x", static_cast<double>(step)}}});
    ASSERT_FALSE(last.ok()) << room;
    EXPECT_EQ(last.error().kind, ErrorKind::kDisk);
    EXPECT_FALSE(sink->close().ok());
    env.heal();
    ASSERT_OK(sink->close());
    EXPECT_EQ(dir.read("metrics.jsonl"), three) << room;
  }
}

}  // namespace
}  // namespace mortise
