// A long run with a fault every few steps: a killed worker, its killed supervisor, a worker that stops for a while, a
// save that a full disk refuses, a row of metrics that fails. The numbers of open files and bytes do not grow, and the
// run learns the same as one without faults.
//
// MORTISE_LONG=1: 10,000 steps with a fault per 100. Prints the share of time that is not lost to faults.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "foundation/base/clock.h"
#include "foundation/base/memory.h"
#include "foundation/base/rng.h"
#include "in_process.h"
#include "process.h"
#include "support/long_run.h"

namespace mortise::test {
namespace {

int64_t steps_per_save() { return is_long() ? 50 : 5; }

// Calls back behind each row of metrics.jsonl: between two steps, in the run's own thread. A row is added by an append or,
// after one that failed, with a new file.
class StepEnv final : public ForwardingEnv {
 public:
  // `is_whole`: with a new file, whose pages are still mapped.
  StepEnv(Env& base, std::function<void(bool is_whole)> after_row)
      : ForwardingEnv(base), after_row_(std::move(after_row)) {}

  Result<std::unique_ptr<WritableFile>> open_for_write(const Path& path, WriteMode mode) override {
    auto file = TRY(base().open_for_write(path, mode));
    if (path.filename() != "metrics.jsonl") return file;
    return std::unique_ptr<WritableFile>(new File(this, std::move(file)));
  }
  Result<> rename(const Path& from, const Path& to) override {
    TRY(base().rename(from, to));
    if (to.filename() == "metrics.jsonl") after_row_(/*is_whole=*/true);
    return {};
  }

 private:
  class File final : public ForwardingFile {
   public:
    File(StepEnv* env, std::unique_ptr<WritableFile> file) : ForwardingFile(std::move(file)), env_(env) {}
    Result<> append(std::span<const std::byte> bytes) override {
      TRY(ForwardingFile::append(bytes));
      env_->after_row_(/*is_whole=*/false);
      return {};
    }

   private:
    StepEnv* env_;
  };
  std::function<void(bool)> after_row_;
};

int64_t num_open_files() {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

struct Soak {
  int64_t num_steps = 0;
  int64_t steps_per_fault = 0;  // 0: no faults
  FaultEnv disk{default_env()};
  RandomStream random{{.seed = 41}};

  int64_t step = 0;
  int64_t num_workers_killed = 0, num_supervisors_killed = 0, num_stopped = 0, num_disk_faults = 0;
  int64_t num_missed = 0;  // there was no process to strike
  int64_t open_files_before = 0, open_files_most = 0;
  double memory_before = 0, memory_most = 0;  // GiB
  std::vector<int64_t> full_steps;            // whose save met a full disk
  std::vector<double> step_seconds;
  Stopwatch watch{default_env()};
  std::vector<Stopwatch> supervisor_kills;

  void after_step(bool judges_memory) {
    ++step;
    step_seconds.push_back(watch.elapsed_s());
    watch = Stopwatch(default_env());
    if (step == num_steps / 20) open_files_before = num_open_files(), memory_before = resident_memory_gib();
    if (step > num_steps / 20) {
      open_files_most = std::max(open_files_most, num_open_files());
      if (judges_memory) memory_most = std::max(memory_most, resident_memory_gib());
    }
    if (steps_per_fault > 0 && step % steps_per_fault == 0 && step < num_steps) strike(step / steps_per_fault);
  }

 private:
  void strike(int64_t count) {
    constexpr int64_t kNext = 3;  // operations on the disk: the save of this step, which comes next, fails
    if (count % 10 == 9) return kill_supervisor();
    switch (count % 4) {
      case 0:
        num_workers_killed += kill_any(workers(), SIGKILL) != 0 ? 1 : 0;
        break;
      case 1:
        disk.full_from(1, ENOSPC, kNext);
        full_steps.push_back(step);
        ++num_disk_faults;
        break;
      case 2:
        if (const pid_t stopped = kill_any(workers(), SIGSTOP); stopped != 0) {
          ++num_stopped;
          std::thread([stopped] {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            kill(stopped, SIGCONT);
          }).detach();
        }
        break;
      default:
        disk.fail_at(1 + static_cast<int64_t>(random.next_below(8)), EIO);
        ++num_disk_faults;
    }
  }
  // The run gives up at the fourth such death within a minute, and tiny steps are fast. The wait counts for no step.
  void kill_supervisor() {
    constexpr size_t kMostInAMinute = 3;
    const auto is_too_soon = [this] {
      return supervisor_kills.size() >= kMostInAMinute && (supervisor_kills.end() - kMostInAMinute)->elapsed_s() < 65;
    };
    while (is_too_soon()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    num_supervisors_killed += kill_any(children_of(getpid()), SIGKILL) != 0 ? 1 : 0;
    supervisor_kills.emplace_back(default_env());
    watch = Stopwatch(default_env());
  }
  static std::vector<pid_t> workers() {
    std::vector<pid_t> all;
    for (const pid_t supervisor : children_of(getpid())) {
      for (const pid_t worker : children_of(supervisor)) all.push_back(worker);
    }
    return all;
  }
  pid_t kill_any(const std::vector<pid_t>& processes, int signal) {
    if (processes.empty()) {
      ++num_missed;
      return 0;
    }
    const pid_t chosen = processes[random.next_below(processes.size())];
    return kill(chosen, signal) == 0 ? chosen : 0;
  }
};

void run_soak(Soak& soak, const std::string& out) {
  soak.disk.keep_no_list();
  StepEnv env(soak.disk, [&](bool is_whole) { soak.after_step(!is_whole); });
  const auto done = train_on(
      env, out, soak.num_steps,
      // Bubblewrap's own processes would stand between this one and what is to be struck.
      {"plugins.isolation=process", "plugins.bubblewrap=false", "trainer.save_freq=" + std::to_string(steps_per_save()),
       "trainer.rollout_data_dir=null", "plugins.max_failed_fraction=0"});
  ASSERT_TRUE(done.ok()) << done.error().to_string();
}

double sum(const std::vector<double>& values, int64_t first, int64_t end) {
  double all = 0;
  for (int64_t i = first; i < end; ++i) all += values[static_cast<size_t>(i)];
  return all;
}

// The share of the time that is not lost to faults: the steps behind each one, against as many just before it. So a
// machine that gets slower or faster changes nothing.
double effective_time(const Soak& soak) {
  constexpr int64_t kSteps = 5;
  double lost = 0;
  for (int64_t step = soak.steps_per_fault; step + kSteps <= soak.num_steps; step += soak.steps_per_fault)
    lost += sum(soak.step_seconds, step, step + kSteps) - sum(soak.step_seconds, step - kSteps, step);
  return 1 - lost / sum(soak.step_seconds, 0, soak.num_steps);
}

TEST(Soak, FaultsCostNoFileNoMemoryAndNoBit) {
  const TinyTask task;
  const InFolder inside(task.path());
  Soak soak;
  soak.num_steps = is_long() ? 10'000 : 200;
  soak.steps_per_fault = is_long() ? 100 : 10;  // at steps that are saved
  run_soak(soak, "out");
  if (HasFatalFailure()) return;
  EXPECT_GT(soak.num_workers_killed, 0);
  EXPECT_GT(soak.num_supervisors_killed, 0);
  EXPECT_GT(soak.num_stopped, 0);
  EXPECT_GT(soak.num_disk_faults, 0);
  EXPECT_LE(soak.num_missed * 10, soak.num_steps / soak.steps_per_fault) << "faults that met nothing";
  const std::vector<Json> rows = rows_of("out/metrics.jsonl");
  ASSERT_EQ(static_cast<int64_t>(rows.size()), soak.num_steps);
  ASSERT_FALSE(soak.full_steps.empty());
  // A save counts in the row of the step after it.
  for (const int64_t step : soak.full_steps)
    EXPECT_EQ(rows[static_cast<size_t>(step)]["perf/failed_saves"], 1.0) << "the disk was full at step " << step;
  const auto saves = [](const Json& row) { return row["perf/failed_saves"] != 0.0; };
  const int64_t num_failed_saves = std::count_if(rows.begin(), rows.end(), saves) / steps_per_save();
  EXPECT_GE(num_failed_saves, static_cast<int64_t>(soak.full_steps.size()));
  EXPECT_LE(num_failed_saves, soak.num_disk_faults) << "a fault costs no more than the save that it meets";
  EXPECT_LE(soak.open_files_most, soak.open_files_before + 2) << "workers of a step that is just beginning";
  // In a short run the caches of allocators still fill.
  EXPECT_LE(soak.memory_most, soak.memory_before * (is_long() ? 1.01 : 1.10));
  std::vector<double> sorted = soak.step_seconds;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2], all = sum(sorted, 0, soak.num_steps);
  const double effective = effective_time(soak);
  std::printf(
      "%d steps, %.1f s, median %.4f s; killed: %d workers, %d supervisors; %d workers stopped; %d disk faults, %d failed saves; "
      "open files %d, at most %d; memory %.4f GiB, at most %.4f (%+.2f%%); effective time %.1f%%\n",
      static_cast<int>(soak.num_steps), all, median, static_cast<int>(soak.num_workers_killed),
      static_cast<int>(soak.num_supervisors_killed), static_cast<int>(soak.num_stopped),
      static_cast<int>(soak.num_disk_faults), static_cast<int>(num_failed_saves),
      static_cast<int>(soak.open_files_before), static_cast<int>(soak.open_files_most), soak.memory_before,
      soak.memory_most, 100 * (soak.memory_most / soak.memory_before - 1), 100 * effective);
  if (is_long()) {
    EXPECT_GE(effective, 0.95);
  }
  if (is_long()) return;
  Soak straight;
  straight.num_steps = soak.num_steps;
  run_soak(straight, "straight");
  expect_same_bits(bits_of_run("out", soak.num_steps), bits_of_run("straight", soak.num_steps), "with faults");
}

}  // namespace
}  // namespace mortise::test
