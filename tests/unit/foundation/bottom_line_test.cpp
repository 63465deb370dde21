// The moving line on a pseudo-terminal of several widths, and while it is resized.
#include "foundation/base/bottom_line.h"

#include <gmock/gmock.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>
#include <tuple>

#include "foundation/base/log.h"
#include "foundation/metrics/sinks.h"
#include "support/on_a_terminal.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::OnATerminal;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(FitColumns, LeavesOutWholeItemsFromTheRight) {
  const std::string_view text = "step 3/9  1m05s left  reward 0.532";
  EXPECT_EQ(fit_columns(text, 100), text);
  EXPECT_EQ(fit_columns(text, text.size()), text);
  EXPECT_EQ(fit_columns(text, text.size() - 1), "step 3/9  1m05s left");
  EXPECT_EQ(fit_columns(text, 20), "step 3/9  1m05s left");
  EXPECT_EQ(fit_columns(text, 19), "step 3/9");
  EXPECT_EQ(fit_columns(text, 8), "step 3/9");
  EXPECT_EQ(fit_columns(text, 6), "step 3") << "a first item that does not fit is cut";
  EXPECT_EQ(fit_columns("\u00e9\u00e9\u00e9", 2), "\u00e9\u00e9") << "code points, not bytes";
  EXPECT_EQ(fit_columns("", 0), "");
  EXPECT_EQ(fit_columns("abc", 0), "");
}

MetricRow row_of(int64_t step) {
  return {{{"step", step}},
          {{"critic/score/mean", 0.5},
           {"actor/loss", 0.25},
           {"actor/kl_loss", 0.001},
           {"actor/entropy", 1.5},
           {"response_length/mean", 7.5},
           {"val-core/addition/acc/mean@1", 0.91},
           {"perf/throughput", 8412.3},
           {"timing_s/step", 0.41}}};
}

// What the child does: steps with a log line between, then one step for every byte that the terminal sends.
[[noreturn]] void log_steps(const Path& file) {
  ::setenv("TERM", "xterm", 1);
  termios settings{};
  tcgetattr(STDIN_FILENO, &settings);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);  // the sent text must not show
  tcsetattr(STDIN_FILENO, TCSANOW, &settings);
  bool good = log_init({.console_level = LogLevel::kInfo, .file = file}).ok();
  // As in a run: without a terminal there would be a line every minute.
  const auto sink = make_console_sink(default_env(), {.total_steps = 99, .plain_every_s = 60});
  int64_t step = 0;
  for (; step < 20; ++step) {
    good = good && sink->write(row_of(step + 1)).ok();
    if (step == 9) log_info("a line between");
  }
  char c = 0;
  while (::read(STDIN_FILENO, &c, 1) == 1 && c != 'q') good = good && sink->write(row_of(++step)).ok();
  good = good && sink->close().ok();
  log_flush();
  _exit(good ? 0 : 1);
}

class MovingLine : public ::testing::TestWithParam<std::tuple<unsigned short, bool>> {};

TEST_P(MovingLine, IsOneRowAtAnyWidth) {
  const auto [columns, reflows] = GetParam();
  const test::TempDir dir;
  OnATerminal terminal(columns, reflows);
  ASSERT_TRUE(terminal.started());
  if (terminal.is_child()) log_steps(dir / "log.txt");
  ASSERT_TRUE(terminal.wait_for("step 20/99"));
  const std::vector<std::string> rows = terminal.screen().rows();
  ASSERT_EQ(rows.size(), 2U) << ::testing::PrintToString(rows);
  EXPECT_THAT(rows[0], HasSubstr("a line between"));
  EXPECT_THAT(rows[1], StartsWith("step 20/99  ")) << "nothing of the steps before";
  EXPECT_THAT(rows[1], HasSubstr(" left  reward 0.500"));
  EXPECT_LT(rows[1].size(), columns);
  if (columns >= 200) {
    EXPECT_THAT(rows[1], ::testing::EndsWith("8,412 tok/s"));
  }
  EXPECT_EQ(terminal.screen().unknown(), "");

  // Narrower: drawn again at once, without a step.
  terminal.resize(40);
  ASSERT_TRUE(terminal.wait_for("step 20/99"));
  terminal.send('s');
  terminal.send('\n');
  ASSERT_TRUE(terminal.wait_for("step 22/99"));
  const std::vector<std::string> narrow = terminal.screen().rows();
  EXPECT_THAT(narrow.back(), StartsWith("step 22/99  "));
  EXPECT_LT(narrow.back().size(), 40U);
  int num_steps = 0;
  for (const std::string& row : narrow) num_steps += row.find("/99") != std::string::npos ? 1 : 0;
  EXPECT_EQ(num_steps, 1) << ::testing::PrintToString(narrow);

  terminal.resize(200);
  ASSERT_TRUE(terminal.wait_for("8,412 tok/s")) << "wider: the signal alone shows more";

  terminal.send('q');
  terminal.send('\n');
  terminal.read_all();
  EXPECT_EQ(terminal.exit_code(), 0);
  EXPECT_THAT(terminal.screen().rows().back(), HasSubstr("step 22/99")) << "the last numbers stay";
  const std::string file = dir.read("log.txt");
  for (int64_t step = 1; step <= 22; ++step)
    EXPECT_THAT(file, HasSubstr("info step " + std::to_string(step) + "/99")) << "also on a terminal";
  EXPECT_EQ(file.find("step 22/99"), file.rfind("step 22/99"));
}

INSTANTIATE_TEST_SUITE_P(Widths, MovingLine, ::testing::Combine(::testing::Values(60, 80, 200), ::testing::Bool()),
                         [](const auto& given) {
                           return std::to_string(std::get<0>(given.param)) +
                                  (std::get<1>(given.param) ? "WithReflow" : "WithoutReflow");
                         });

// Lines from before the run's folder is known belong to its log as well.
TEST(EarlyLines, StandInTheFirstFile) {
  const test::TempDir dir;
  EXPECT_EXIT(
      {
        log_warn("said early to https://me:hidden@host/");
        const bool good = log_init({.console_level = LogLevel::kOff, .file = dir / "log.txt"}).ok();
        log_info("said late");
        log_flush();
        _exit(good ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
  const std::string file = dir.read("log.txt");
  EXPECT_THAT(file, ::testing::ContainsRegex("warning said early[^\n]*\n.*info said late\n"));
  EXPECT_THAT(file, ::testing::Not(HasSubstr("hidden"))) << "logins are left out here as everywhere";
}

}  // namespace
}  // namespace mortise
