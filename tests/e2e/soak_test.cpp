// A long run with a fault every so many steps: a worker killed, its supervisor killed, a worker that stands still for a
// while, a save that a full disk refuses, a row of metrics that fails. Open files and memory stay as they are, and what
// is learnt is what a run without faults learns.
//
// MORTISE_LONG=1: 10,000 steps with a fault per 100. Prints the share of time that is not lost to faults.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "foundation/base/clock.h"
#include "foundation/base/memory.h"
#include "foundation/base/rng.h"
#include "in_process.h"

namespace mortise::test {
namespace {

bool is_long() { return std::getenv("MORTISE_LONG") != nullptr; }

// Passes everything on and calls back behind each row of metrics.jsonl: between two steps, in the run's own thread.
class StepEnv final : public Env {
 public:
  StepEnv(Env& base, std::function<void()> after_row) : base_(&base), after_row_(std::move(after_row)) {}

  Result<std::string> read_file(const Path& path, uint64_t max_bytes) override {
    return base_->read_file(path, max_bytes);
  }
  Result<MappedFile> map_file(const Path& path) override { return base_->map_file(path); }
  Result<FileInfo> info(const Path& path) override { return base_->info(path); }
  bool exists(const Path& path) override { return base_->exists(path); }
  Result<std::vector<std::string>> list_dir(const Path& path) override { return base_->list_dir(path); }
  Result<uint64_t> free_bytes(const Path& path) override { return base_->free_bytes(path); }
  Result<std::unique_ptr<WritableFile>> open_for_write(const Path& path, WriteMode mode) override {
    auto file = TRY(base_->open_for_write(path, mode));
    if (path.filename() != "metrics.jsonl") return file;
    return std::unique_ptr<WritableFile>(new File(this, std::move(file)));
  }
  Result<> rename(const Path& from, const Path& to) override { return base_->rename(from, to); }
  Result<> unlink(const Path& path) override { return base_->unlink(path); }
  Result<> remove_dir(const Path& path) override { return base_->remove_dir(path); }
  Result<> create_dirs(const Path& path) override { return base_->create_dirs(path); }
  Result<> sync_dir(const Path& path) override { return base_->sync_dir(path); }
  int64_t wall_time_ns() override { return base_->wall_time_ns(); }
  int64_t monotonic_ns() override { return base_->monotonic_ns(); }
  void random_bytes(std::span<std::byte> out) override { base_->random_bytes(out); }

 private:
  class File final : public WritableFile {
   public:
    File(StepEnv* env, std::unique_ptr<WritableFile> file) : env_(env), file_(std::move(file)) {}
    Result<> append(std::span<const std::byte> bytes) override {
      Result<> written = file_->append(bytes);
      env_->after_row_();
      return written;
    }
    Result<> sync() override { return file_->sync(); }
    Result<> close() override { return file_->close(); }
    [[nodiscard]] const Path& path() const override { return file_->path(); }

   private:
    StepEnv* env_;
    std::unique_ptr<WritableFile> file_;
  };
  Env* base_;
  std::function<void()> after_row_;
};

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  const Path tasks = Path("/proc") / std::to_string(parent) / "task";
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    std::ifstream file(task.path() / "children");
    for (pid_t child = 0; file >> child;) children.push_back(child);
  }
  std::sort(children.begin(), children.end());
  return children;
}

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
  int64_t open_files_before = 0, open_files_most = 0;
  double memory_before = 0, memory_most = 0;  // GiB
  std::vector<double> step_seconds;
  Stopwatch watch{default_env()};

  void after_step() {
    ++step;
    step_seconds.push_back(watch.elapsed_s());
    watch = Stopwatch(default_env());
    if (step == num_steps / 20) open_files_before = num_open_files(), memory_before = resident_memory_gib();
    if (step > num_steps / 20) {
      open_files_most = std::max(open_files_most, num_open_files());
      memory_most = std::max(memory_most, resident_memory_gib());
    }
    if (steps_per_fault > 0 && step % steps_per_fault == 0 && step < num_steps) strike(step / steps_per_fault);
  }

 private:
  void strike(int64_t count) {
    constexpr int64_t kNext = 3;  // operations on the disk: the save of this step, which comes next, fails
    if (count % 10 == 9) {
      num_supervisors_killed += kill_any(children_of(getpid()), SIGKILL) != 0 ? 1 : 0;
      return;
    }
    switch (count % 4) {
      case 0:
        num_workers_killed += kill_any(workers(), SIGKILL) != 0 ? 1 : 0;
        break;
      case 1:
        disk.full_from(1, ENOSPC, kNext);
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
  static std::vector<pid_t> workers() {
    std::vector<pid_t> all;
    for (const pid_t supervisor : children_of(getpid())) {
      for (const pid_t worker : children_of(supervisor)) all.push_back(worker);
    }
    return all;
  }
  pid_t kill_any(const std::vector<pid_t>& processes, int signal) {
    if (processes.empty()) return 0;
    const pid_t chosen = processes[random.next_below(processes.size())];
    return kill(chosen, signal) == 0 ? chosen : 0;
  }
};

void run_soak(Soak& soak, const std::string& out) {
  StepEnv env(soak.disk, [&] { soak.after_step(); });
  const auto done = train_on(env, out, soak.num_steps,
                             {"plugins.isolation=process", "trainer.save_freq=" + std::string(is_long() ? "50" : "5"),
                              "trainer.rollout_data_dir=null", "plugins.max_failed_fraction=0"});
  ASSERT_TRUE(done.ok()) << done.error().to_string();
}

double total(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
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
  EXPECT_LE(soak.open_files_most, soak.open_files_before + 2) << "workers of a step that is just beginning";
  // In a short run the caches of allocators still fill.
  EXPECT_LE(soak.memory_most, soak.memory_before * (is_long() ? 1.01 : 1.10));
  std::vector<double> sorted = soak.step_seconds;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2], all = total(sorted);
  std::printf(
      "%d steps, %.1f s, median %.4f s; killed: %d workers, %d supervisors; %d workers stopped; %d disk faults; "
      "open files %d, at most %d; memory %.4f GiB, at most %.4f (%+.2f%%); effective time %.1f%%\n",
      static_cast<int>(soak.num_steps), all, median, static_cast<int>(soak.num_workers_killed),
      static_cast<int>(soak.num_supervisors_killed), static_cast<int>(soak.num_stopped),
      static_cast<int>(soak.num_disk_faults), static_cast<int>(soak.open_files_before),
      static_cast<int>(soak.open_files_most), soak.memory_before, soak.memory_most,
      100 * (soak.memory_most / soak.memory_before - 1),
      100 * std::min(1.0, median * static_cast<double>(sorted.size()) / all));
  if (is_long()) return;
  Soak straight;
  straight.num_steps = soak.num_steps;
  run_soak(straight, "straight");
  expect_same_bits(bits_of_run("out", soak.num_steps), bits_of_run("straight", soak.num_steps), "with faults");
}

}  // namespace
}  // namespace mortise::test
