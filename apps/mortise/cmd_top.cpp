// `mortise top`: what a run does now, read from the files of its folder by another terminal or another host.
#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <thread>

#include "command_line.h"
#include "foundation/base/bottom_line.h"
#include "foundation/base/clock.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/signal.h"
#include "foundation/base/text.h"
#include "foundation/metrics/live_view.h"
#include "foundation/metrics/sinks.h"
#include "report/file_tail.h"
#include "report/history.h"

namespace mortise {
namespace {

namespace po = boost::program_options;
constexpr const char* kTopCommand = "mortise top";
constexpr const char* kTopUsage =
    "usage: mortise top RUN [options]\n\n"
    "Shows what a run does now: the numbers of its last step, how far each stage is, and its warnings. It reads only the\n"
    "files of the run's folder (trainer.default_local_dir), so it works from another terminal, and from another host that\n"
    "sees the folder. It ends with the run, or with Ctrl-C, which does not touch the run. Without a terminal it prints a\n"
    "line per step.\n";
constexpr double kSilent_s = 30;  // from then on the view says how old it is

struct TopArguments {
  std::string run;
  bool once = false;
};

po::options_description top_options(TopArguments& args) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("once", po::bool_switch(&args.once), "print what is there, and end");
  return options;
}

Result<TopArguments> parse_top(Arguments args) {
  TopArguments out;
  const std::vector<std::string> words = words_of(TRY(parse_words(args, top_options(out), kTopCommand)));
  if (words.size() != 1)
    return Error{ErrorKind::kConfig, words.empty() ? "a run is missing" : "there is more than one run", kTopCommand,
                 "name the folder of one run, such as runs/quickstart"};
  out.run = words.front();
  return out;
}

// A run of a Mortise without live.json, or one whose file is just being written.
Result<LiveState> state_of_metrics(Env& env, const Path& folder) {
  const RunHistory run = TRY(read_run_history(env, folder));
  LiveState state;
  state.state = "unknown";
  MetricRow row{{{"step", run.last_step}}, {}};
  for (const auto& [name, series] : run.metrics) {
    if (series.back().step == run.last_step) row.values.push_back({name, series.back().value});
  }
  state.headline = progress_text(row, 0, -1);
  if (const MetricSeries* rewards = run.find("critic/score/mean")) {
    const size_t first = rewards->size() - std::min(rewards->size(), LiveState::kMostRewards);
    for (size_t i = first; i < rewards->size(); ++i) state.rewards.push_back((*rewards)[i].value);
  }
  return state;
}

Result<LiveState> read_state(Env& env, const Path& folder) {
  const Path path = folder / "live.json";
  const auto json = read_json_file(env, path);
  if (json.ok()) {
    auto state = read_live_json(*json, path.string());
    if (state.ok()) return state;
  }
  return state_of_metrics(env, folder);
}

// Reads what was added to log.txt since the last call.
class LogTail {
 public:
  LogTail(Env& env, Path file) : tail_(env, std::move(file)) {}

  void read() {
    while (true) {
      const auto lines = tail_.read();
      if (lines && lines->empty()) return;
      if (!lines) {  // another run's log: from its beginning
        events_.clear();
        continues_ = false;
        continue;
      }
      for (const std::string& line : *lines) add_log_line(line, continues_, events_);
    }
  }
  [[nodiscard]] int64_t num_warnings() const {
    return std::ranges::count_if(events_, [](const RunEvent& event) { return event.level != "info"; });
  }
  [[nodiscard]] std::string newest() const {
    for (auto event = events_.rbegin(); event != events_.rend(); ++event)
      if (event->level != "info") return one_line(event->text);
    return {};
  }

 private:
  FileTail tail_;
  bool continues_ = false;
  std::vector<RunEvent> events_;
};

std::string warning_line(const LogTail& log, size_t columns) {
  const std::string label = counted(log.num_warnings(), "warning") + "  ";
  return label + shorten(log.newest(), std::max(columns, label.size() + 10) - label.size());
}

std::string ending_of(const LiveState& state, double age_s) {
  if (state.state == "done") return "the run is done";
  if (state.state == "stopped") return "the run was stopped by a signal";
  if (state.state == "failed") return "the run failed: the end of log.txt says why";
  if (state.state == "running" && age_s >= kSilent_s)
    return fmt::format("no news for {}: a long stage, or the run was killed", format_duration(age_s));
  return {};
}

// `fits`: the newest warning is shortened to the width of the terminal.
std::vector<std::string> top_lines(Env& env, const LiveState& state, const LogTail& log, const LiveLook& look,
                                   bool fits) {
  std::vector<std::string> lines;
  if (!state.headline.empty())
    lines.push_back(one_line(state.headline));
  else
    lines.push_back(state.step > 0 ? fmt::format("step {} is the first", state.step) : "no step has begun");
  for (std::string& line : live_lines(state, look)) lines.push_back(std::move(line));
  if (log.num_warnings() > 0) lines.push_back(warning_line(log, fits ? look.columns : std::string::npos));
  const double age_s = static_cast<double>(env.wall_time_ns() - state.time_ns) / 1e9;
  if (const std::string ending = ending_of(state, age_s); !ending.empty()) lines.push_back(ending);
  return lines;
}

bool is_over(const LiveState& state) { return state.state != "running"; }

void print_lines(const std::vector<std::string>& lines) { std::cout << join(lines, "\n") << "\n" << std::flush; }

// Until the run is over or somebody stops it. False: stopped.
Result<bool> follow(Env& env, const Path& folder, LogTail& log, bool on_terminal) {
  BottomLine bottom(STDOUT_FILENO);
  std::string printed;
  while (!stop_requested()) {
    const LiveState state = TRY(read_state(env, folder));
    log.read();
    if (is_over(state)) {
      if (on_terminal) bottom.draw("", "");
      return true;
    }
    if (on_terminal) {
      const LiveLook look{terminal_size(STDOUT_FILENO).columns, locale_is_utf8(), std::getenv("NO_COLOR") == nullptr};
      bottom.draw("", join(top_lines(env, state, log, look, true), "\n"));
      bottom.watch_width();
    } else if (state.headline != printed) {
      printed = state.headline;
      print_lines({one_line(printed)});
    }
    for (int i = 0; i < 10 && !stop_requested(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  if (on_terminal) bottom.draw("", "");
  return false;
}

Result<> run_top(const TopArguments& args) {
  Env& env = default_env();
  const Path folder = args.run;
  const char* terminal = std::getenv("TERM");
  const bool on_terminal = ::isatty(STDOUT_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
  LogTail log(env, folder / "log.txt");
  take_stop_requests();
  if (!args.once && !TRY(follow(env, folder, log, on_terminal))) return {};
  log.read();
  LiveLook look;
  look.has_unicode = locale_is_utf8();
  if (on_terminal) look.columns = terminal_size(STDOUT_FILENO).columns;
  print_lines(top_lines(env, TRY(read_state(env, folder)), log, look, false));
  return {};
}

}  // namespace

int cmd_top(Arguments args) { return run_parsed<TopArguments>(args, kTopUsage, top_options, parse_top, run_top); }

}  // namespace mortise
