// The live view: its lines, its file, and what a person sees of it on a terminal.
#include "foundation/metrics/live.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>

#include "foundation/base/log.h"
#include "foundation/metrics/live_view.h"
#include "foundation/metrics/rank_progress.h"
#include "support/forwarding_env.h"
#include "support/on_a_terminal.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Sparkline, PlacesEachValueBetweenTheLowestAndTheHighest) {
  const std::vector<double> values{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(sparkline(values, 8, true), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(sparkline(values, 8, false), "_.-~=*%#");
  EXPECT_EQ(sparkline(values, 2, true), "▁█") << "the last two";
  EXPECT_EQ(sparkline(std::vector<double>{3, 3}, 9, true), "▁▁");
  EXPECT_EQ(sparkline(std::vector<double>{0, NAN, 1}, 9, true), "▁ █");
  EXPECT_EQ(sparkline(std::vector<double>{-1e308, 1e308}, 9, true), "▁█") << "no overflow";
  EXPECT_EQ(sparkline({}, 9, true), "");
}

LiveState some_state() {
  LiveState state;
  state.step = 13;
  state.total_steps = 300;
  state.headline = "step 12/300  2m05s left";
  state.stages = {
      {"sampling", 96, 128, "rows", 0}, {"rewards", 32, 128, "rows", 64}, {"update", 0, 16, "micro-batches", 0}};
  state.rewards = {0.25, NAN, 0.5};
  return state;
}

TEST(LiveLines, HaveABarForEachStage) {
  EXPECT_THAT(live_lines(some_state(), {.columns = 59, .has_unicode = false}),
              ElementsAre("reward      0.25 to 0.5, 3 steps       _ #",
                          "sampling    96/128 rows                ###############.....",
                          "rewards     32/128 rows, 64 pending    #####...............",
                          "update      0/16 micro-batches         ...................."));
  const std::string wide = live_lines(some_state(), {.columns = 199}).at(1);
  EXPECT_THAT(wide, EndsWith("  ██████████████████████████████░░░░░░░░░░"));
  EXPECT_THAT(live_lines(some_state(), {.columns = 199, .has_color = true}).at(1), EndsWith("░░\x1b[0m"));
  LiveState long_count = some_state();
  long_count.stages[1] = {"rewards", 102, 1024, "rows", 362};
  EXPECT_THAT(live_lines(long_count, {.columns = 59, .has_unicode = false}),
              ElementsAre("reward      0.25 to 0.5, 3 steps        _ #",
                          "sampling    96/128 rows                 ##############.....",
                          "rewards     102/1024 rows, 362 pending  #..................",
                          "update      0/16 micro-batches          ..................."))
      << "a bar gives way to a long count, and no line is wider than the terminal";
  LiveState odd;
  odd.stages = {{"a plugin's\x1b[2J", 3, 0, "rows", 0}};
  EXPECT_THAT(live_lines(odd, {.columns = 20}), ElementsAre(HasSubstr("3 rows")));
  EXPECT_THAT(live_lines(odd, {.columns = 20}).at(0), Not(HasSubstr("\x1b")));
}

TEST(LiveState, IsReadAsItWasWritten) {
  const Json json = live_json(some_state());
  ASSERT_OK_AND_ASSIGN(const Json read, parse_json(dump_json(json), "live.json"));
  ASSERT_OK_AND_ASSIGN(const LiveState again, read_live_json(read, "live.json"));
  EXPECT_EQ(live_json(again), json);
  EXPECT_TRUE(std::isnan(again.rewards[1]));
  EXPECT_THAT(test::error_of(read_live_json(Json::object(), "live.json")), HasSubstr("live.json"));
  EXPECT_THAT(test::error_of(read_live_json(parse_json(R"({"state": "running", "step": 1, "total_steps": 1,
      "time_ns": 1, "headline": "", "stages": 3, "rewards": []})",
                                                       "x")
                                                .value(),
                                            "live.json")),
              HasSubstr("this is not the state of a run"));
}

// Each look at the clock is two seconds later: whatever is told is shown.
class SlowEnv : public test::ForwardingEnv {
 public:
  SlowEnv() : ForwardingEnv(default_env()) {}
  int64_t monotonic_ns() override { return now_ += 2'000'000'000; }

 private:
  int64_t now_ = 0;
};

MetricRow live_row(int64_t step, double reward) { return {{{"step", step}}, {{"critic/score/mean", reward}}}; }

[[noreturn]] void run_on_terminal(const Path& folder, bool has_color) {
  ::setenv("TERM", "xterm", 1);
  ::setenv("LC_ALL", "C.UTF-8", 1);
  has_color ? ::unsetenv("NO_COLOR") : ::setenv("NO_COLOR", "1", 1);
  termios settings{};
  tcgetattr(STDIN_FILENO, &settings);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON);
  tcsetattr(STDIN_FILENO, TCSANOW, &settings);
  bool good = log_init({.console_level = LogLevel::kInfo, .file = folder / "log.txt"}).ok();
  SlowEnv env;
  live_begin(env, {folder / "live.json", true, 0, 9});
  const auto sink = make_console_sink(env, {.total_steps = 9});
  for (int64_t step = 1; step <= 2; ++step) {
    live_step(step);
    live_stage(kSamplingStage, "rows", 128, 128);
    live_numbers(live_row(step, 0.25 * static_cast<double>(step)));
    good = good && sink->write(live_row(step, 0.25 * static_cast<double>(step))).ok();
  }
  log_warn("the first warning");
  live_step(3);
  live_stage(kRewardStage, "rows", 32, 128, 64);  // the rows may be those of another rank
  live_stage(kSamplingStage, "rows", 96, 128);
  log_warn("the second warning");
  live_stage({"update"}, "micro-batches", 8, 16);
  char c = 0;
  while (::read(STDIN_FILENO, &c, 1) == 1 && c != 'q') live_stage({"update"}, "micro-batches", 12, 16);
  live_end("done");
  good = good && sink->close().ok();
  log_flush();
  _exit(good ? 0 : 1);
}

std::vector<std::string> last_rows(const test::Terminal& screen, size_t count) {
  const std::vector<std::string> rows = screen.rows();
  return {rows.end() - static_cast<ptrdiff_t>(std::min(rows.size(), count)), rows.end()};
}

class LiveOnTerminal : public ::testing::TestWithParam<std::tuple<unsigned short, bool>> {};

TEST_P(LiveOnTerminal, ShowsStagesAndKeepsWarnings) {
  const auto [columns, reflows] = GetParam();
  const bool has_color = columns == 200;
  const test::TempDir dir;
  test::OnATerminal terminal(columns, reflows);
  ASSERT_TRUE(terminal.started());
  if (terminal.is_child()) run_on_terminal(dir.path(), has_color);
  ASSERT_TRUE(terminal.wait_for("8/16 micro-batches", 2));
  ASSERT_TRUE(terminal.wait_for("2 warnings"));
  const std::vector<std::string> all = terminal.screen().rows();
  ASSERT_EQ(all.size(), 8U) << ::testing::PrintToString(all);
  EXPECT_THAT(all[0], EndsWith("warning: the first warning"));
  EXPECT_THAT(all[1], EndsWith("warning: the second warning"));
  EXPECT_THAT(all[2], AllOf(StartsWith("step 2/9  "), HasSubstr(" left  reward 0.500")))
      << "nothing of what was shown before";
  EXPECT_THAT(all[3], StartsWith("reward      0.25 to 0.5, 2 steps       ▁█"));
  EXPECT_THAT(all[4], StartsWith("sampling    96/128 rows                ███"));
  EXPECT_THAT(all[5], StartsWith("rewards     32/128 rows, 64 pending    ███"));
  EXPECT_THAT(all[6], StartsWith("update      8/16 micro-batches         ███"));
  EXPECT_THAT(all[7], "2 warnings  the second warning");
  for (const std::string& row : all) EXPECT_LT(test::Terminal::columns_of(row), columns);
  EXPECT_EQ(terminal.screen().has_color(), has_color) << "NO_COLOR";
  EXPECT_EQ(terminal.screen().unknown(), "");

  ASSERT_OK_AND_ASSIGN(const Json shown, read_json_file(default_env(), dir / "live.json"));
  ASSERT_OK_AND_ASSIGN(const LiveState state, read_live_json(shown, "live.json"));
  EXPECT_EQ(state.state, "running");
  EXPECT_EQ(state.step, 3);
  EXPECT_EQ(state.stages.at(1).pending, 64);
  EXPECT_THAT(state.headline, StartsWith("step 2/9"));

  // Narrower: the graphs go, the numbers stay.
  terminal.resize(40);
  terminal.send('s');
  ASSERT_TRUE(terminal.wait_for("12/16 micro-batches", 2));
  for (const std::string& row : last_rows(terminal.screen(), 6)) EXPECT_LT(test::Terminal::columns_of(row), 40U) << row;
  EXPECT_THAT(last_rows(terminal.screen(), 4).front(), "sampling    96/128 rows");

  terminal.send('q');
  terminal.read_all();
  EXPECT_EQ(terminal.exit_code(), 0);
  std::string left;
  for (const std::string& row : terminal.screen().rows()) left += row + "\n";
  EXPECT_THAT(left, Not(HasSubstr("micro-batches"))) << "the view is gone";
  if (reflows) {
    EXPECT_THAT(left, HasSubstr("the first warning")) << "what was above stays";
  }
  EXPECT_THAT(left, HasSubstr("step 2/9"));
  EXPECT_THAT(dir.read("log.txt"), ::testing::ContainsRegex("warning the first warning\n(.*\n)*.*warning the second"));
  ASSERT_OK_AND_ASSIGN(const Json ended, read_json_file(default_env(), dir / "live.json"));
  EXPECT_EQ(ended["state"], "done");
  EXPECT_THAT(ended["headline"].get<std::string>(), AllOf(StartsWith("step 2/9  reward"), Not(HasSubstr(" left"))))
      << "an early stop leaves no time";
}

INSTANTIATE_TEST_SUITE_P(Widths, LiveOnTerminal, ::testing::Combine(::testing::Values(60, 80, 200), ::testing::Bool()),
                         [](const auto& given) {
                           return std::to_string(std::get<0>(given.param)) +
                                  (std::get<1>(given.param) ? "WithReflow" : "WithoutReflow");
                         });

TEST(LiveOnALowTerminal, LeavesOutLinesFromBelow) {
  const test::TempDir dir;
  test::OnATerminal terminal(80, true, 4);
  ASSERT_TRUE(terminal.started());
  if (terminal.is_child()) run_on_terminal(dir.path(), false);
  ASSERT_TRUE(terminal.wait_for("sampling    96/128", 1));
  terminal.send('q');
  terminal.read_all();
  EXPECT_EQ(terminal.exit_code(), 0);
}

[[noreturn]] void warn_at_length() {
  ::setenv("TERM", "xterm", 1);
  ::setenv("NO_COLOR", "1", 1);
  bool good = log_init({.console_level = LogLevel::kInfo, .file = {}}).ok();
  SlowEnv env;
  live_begin(env, {"", true, 0, 9});
  live_step(1);
  live_stage(kSamplingStage, "rows", 1, 128);
  log_warn("a warning " + std::string(100, 'x'));
  char c = 0;
  good = good && ::read(STDIN_FILENO, &c, 1) == 1;
  live_end("done");
  _exit(good ? 0 : 1);
}

TEST(LiveOnATerminal, ShortensALongWarning) {
  test::OnATerminal terminal(60, true);
  ASSERT_TRUE(terminal.started());
  if (terminal.is_child()) warn_at_length();
  ASSERT_TRUE(terminal.wait_for("1 warning"));
  EXPECT_EQ(last_rows(terminal.screen(), 1).front(), "1 warning  a warning " + std::string(35, 'x') + "...");
  terminal.send('\n');
  terminal.read_all();
  EXPECT_EQ(terminal.exit_code(), 0);
}

// A rank that has finished a stage says nothing of it.
TEST(LiveRanks, ShowTheSlowest) {
  const test::TempDir dir;
  SlowEnv env;
  live_begin(env, {.file = dir / "live.json"});
  live_step(1);
  live_stage(kRewardStage, "rows", 4, 8, 2);
  live_stage(kSamplingStage, "rows", 8, 8);
  EXPECT_EQ(own_progress(), "rewards=4/8");
  const auto shown = [&](const std::vector<std::string>& ranks) {
    note_ranks(ranks);
    live_refresh();
    std::string all;
    const LiveState state = read_live_json(read_json_file(env, dir / "live.json").value(), "").value();
    for (const auto& [name, done, total, unit, pending] : state.stages)
      all += name + " " + std::to_string(done) + "/" + std::to_string(total) + " " + unit + " " +
             std::to_string(pending) + "; ";
    return all;
  };
  EXPECT_EQ(shown({}), "sampling 8/8 rows 0; rewards 4/8 rows 2; ") << "one process";
  EXPECT_EQ(shown({"", ""}), "sampling 8/8 rows of rank 0 0; rewards 4/8 rows of rank 0 2; ");
  EXPECT_EQ(shown({"", "sampling=5/8", "rewards=1/16,sampling=3/8", "sampling=x,rewards=/,="}),
            "sampling 3/8 rows of rank 2 0; rewards 1/16 rows of rank 2 0; ");
  EXPECT_EQ(shown({"", "sampling=7/8,rewards=6/8"}), "sampling 7/8 rows of rank 1 0; rewards 4/8 rows of rank 0 2; ");
  live_step(2);
  EXPECT_EQ(own_progress(), "");
  live_stage(kSamplingStage, "rows", 1, 2);
  EXPECT_EQ(slowest_rank("sampling", 1, 2).value().rank, 0) << "nothing is known of other ranks in this step";
  note_ranks({});
  live_end("done");
}

TEST(LiveWithoutATerminal, PrintsNothingAndWritesTheFile) {
  const test::TempDir dir;
  ASSERT_OK(log_init({.console_level = LogLevel::kInfo, .file = {}, .force_plain = true}));
  testing::internal::CaptureStderr();
  live_stage(kSamplingStage, "rows", 1, 2);  // no run: nothing happens
  SlowEnv env;
  live_begin(env, {dir / "live.json", true, 0, 9});
  live_step(1);
  live_stage(kSamplingStage, "rows", 1, 2);
  EXPECT_EQ(dir.read("live.json").size(), 4096U);
  live_end("failed");
  live_end("done");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_OK_AND_ASSIGN(const Json ended, read_json_file(default_env(), dir / "live.json"));
  EXPECT_EQ(ended["state"], "failed");
  EXPECT_EQ(ended["stages"].size(), 0U);
}

}  // namespace
}  // namespace mortise
