// See live.h. The file is rewritten in place by one write of a fixed size: a reader sees a whole state, or one that is
// no JSON, and looks again.
#include "foundation/metrics/live.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "foundation/base/bottom_line.h"
#include "foundation/base/live_lines.h"
#include "foundation/base/log.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "foundation/metrics/live_view.h"
#include "foundation/metrics/pace.h"
#include "foundation/metrics/rank_progress.h"

namespace mortise {
namespace {

constexpr size_t kFileBytes = 4096, kMostHeadline = 400, kMostStages = 10;
constexpr int64_t kBetweenDraws_ns = 100'000'000, kBetweenWrites_ns = 1'000'000'000;

struct LiveRun {
  std::mutex mutex;
  std::atomic<bool> is_on{false};
  Env* env = nullptr;
  bool on_terminal = false;
  int file = -1;
  LiveState state;
  std::string last_headline;  // state.headline without the time that is left: what a run that has ended shows
  std::vector<int> places;    // the place of each of state.stages
  std::optional<Pace> pace;
  int64_t drawn_ns = 0, written_ns = 0;  // 0: never
};

LiveRun& live_run() {
  static auto* run = new LiveRun;  // never destroyed: threads may tell while the program ends
  return *run;
}

// Each stage as the slowest rank has it.
LiveState of_slowest_ranks(LiveState state) {
  for (LiveStage& stage : state.stages) {
    const auto slowest = slowest_rank(stage.name, stage.done, stage.total);
    if (!slowest) continue;
    stage.done = slowest->done;
    stage.total = slowest->total;
    stage.unit += fmt::format(" of rank {}", slowest->rank);
    if (slowest->rank != 0) stage.pending = 0;  // unknown
  }
  return state;
}

void write_live_file(LiveRun& run) {
  if (run.file < 0) return;
  run.state.time_ns = run.env->wall_time_ns();
  std::string text = dump_json(live_json(of_slowest_ranks(run.state)));
  if (text.size() >= kFileBytes) return;
  text.resize(kFileBytes - 1, ' ');
  text += '\n';
  if (::pwrite(run.file, text.data(), text.size(), 0) < 0) return;  // nobody depends on it
}

void draw_live(LiveRun& run) {
  if (!run.on_terminal || !log_has_terminal()) return;
  const LiveLook look{terminal_size(STDERR_FILENO).columns, locale_is_utf8(), log_has_color()};
  log_live_view(join(live_lines(of_slowest_ranks(run.state), look), "\n"));
}

// Precondition: the lock is held.
void show_live(LiveRun& run, bool at_once) {
  const int64_t now = run.env->monotonic_ns();
  if (at_once || run.drawn_ns == 0 || now - run.drawn_ns >= kBetweenDraws_ns) {
    run.drawn_ns = now;
    draw_live(run);
  }
  if (at_once || run.written_ns == 0 || now - run.written_ns >= kBetweenWrites_ns) {
    run.written_ns = now;
    write_live_file(run);
  }
}

}  // namespace

void live_begin(Env& env, const LiveOptions& options) {
  LiveRun& run = live_run();
  const std::lock_guard lock(run.mutex);
  if (run.file >= 0) ::close(run.file);
  run.env = &env;
  run.on_terminal = options.on_terminal;
  run.file = options.file.empty() ? -1 : ::open(options.file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  run.state = {};
  run.places.clear();
  run.last_headline.clear();
  run.state.total_steps = options.total_steps;
  run.pace.emplace(options.first_step, env.monotonic_ns());
  run.drawn_ns = run.written_ns = 0;
  run.is_on.store(true);
  show_live(run, true);
}

void live_step(int64_t step) {
  note_step();
  LiveRun& run = live_run();
  if (!run.is_on.load()) return;
  const std::lock_guard lock(run.mutex);
  if (!run.is_on.load()) return;
  run.state.step = step;
  run.state.stages.clear();
  run.places.clear();
  if (run.on_terminal && run.state.headline.empty())
    log_progress_line(run.state.total_steps > 0 ? fmt::format("step {}/{} begins", step, run.state.total_steps)
                                                : fmt::format("step {} begins", step));
}

void live_stage(LiveStageName name, std::string_view unit, int64_t done, int64_t total, int64_t pending) {
  note_stage(name.text, done, total);
  LiveRun& run = live_run();
  if (!run.is_on.load()) return;
  const std::lock_guard lock(run.mutex);
  if (!run.is_on.load()) return;
  auto& stages = run.state.stages;
  auto stage = std::ranges::find(stages, name.text, &LiveStage::name);
  if (stage == stages.end()) {
    if (stages.size() >= kMostStages) return;
    const auto next = std::ranges::upper_bound(run.places, name.place);
    stage = stages.insert(stages.begin() + (next - run.places.begin()),
                          LiveStage{std::string(name.text), 0, 0, std::string(unit), 0});
    run.places.insert(next, name.place);
  }
  stage->done = done;
  stage->total = total;
  stage->pending = pending;
  show_live(run, false);
}

void live_refresh() {
  LiveRun& run = live_run();
  if (!run.is_on.load()) return;
  const std::lock_guard lock(run.mutex);
  if (run.is_on.load()) show_live(run, false);
}

void live_numbers(const MetricRow& row) {
  LiveRun& run = live_run();
  if (!run.is_on.load() || row.keys.empty()) return;
  const std::lock_guard lock(run.mutex);
  if (!run.is_on.load()) return;
  const int64_t step = row.keys.front().second, total = run.state.total_steps;
  run.pace->add(step, run.env->monotonic_ns());
  const std::optional<double> pace_s = run.pace->seconds_per_step();
  const double left = total > 0 && pace_s ? *pace_s * static_cast<double>(std::max<int64_t>(0, total - step)) : -1.0;
  run.state.headline = shorten(progress_text(row, total, left), kMostHeadline);
  run.last_headline = shorten(progress_text(row, total, -1.0), kMostHeadline);
  const auto reward = std::ranges::find(row.values, "critic/score/mean", &MetricValue::name);
  if (reward != row.values.end()) {
    auto& rewards = run.state.rewards;
    rewards.push_back(reward->value);
    if (rewards.size() > LiveState::kMostRewards) rewards.erase(rewards.begin());
  }
  show_live(run, false);
}

void live_end(std::string_view how) {
  LiveRun& run = live_run();
  if (!run.is_on.load()) return;
  const std::lock_guard lock(run.mutex);
  if (!run.is_on.exchange(false)) return;
  run.state.state = how;
  run.state.headline = run.last_headline;
  run.state.stages.clear();
  run.places.clear();
  write_live_file(run);
  if (run.file >= 0) ::close(run.file);
  run.file = -1;
  log_live_view("");
}

}  // namespace mortise
