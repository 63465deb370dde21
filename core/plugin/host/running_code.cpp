// Handlers of fatal signals and of exit(), and the thread that looks for calls beyond their limit.
#include "plugin/host/running_code.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "foundation/base/clock.h"
#include "foundation/base/last_words.h"
#include "foundation/base/result.h"

namespace mortise {
namespace {

// After the deadline, for a call that ends on its own: it is then an ordinary error.
constexpr int64_t kCallGraceMs = 500;
constexpr std::string_view kAfterwards =
    "; find the fault with `mortise plugin check FILE`, and resume from the last checkpoint without it";

thread_local const RunningCode* t_current = nullptr;
std::atomic<bool> g_reports_installed{false};
pid_t g_reporting_process = 0;

LastWords words_about(const RunningCode& code) {
  LastWords words;
  words.add(code.label).add(", ").add(code.slot);
  if (code.step > 0) words.add(", step ").add(code.step);
  words.add(": ");
  return words;
}

[[noreturn]] void end_program(const LastWords& words) {
  words.write();
  ::syscall(SYS_exit_group, static_cast<int>(ErrorKind::kPlugin));  // not _exit, which may be the program's own
  __builtin_unreachable();
}

// Standard error alone: the run's log belongs to the process that was forked.
[[noreturn]] void end_forked_child(const RunningCode& code) {
  set_last_words_file(-1);
  words_about(code)
      .add("its code forked and the child returned, so the child was ended here; end a forked child with _exit(0)")
      .write();
  ::syscall(SYS_exit_group, 1);
  __builtin_unreachable();
}

// The code of a pack that this thread runs; null in a child process, whose end is its own affair.
const RunningCode* code_to_blame() { return ::getpid() == g_reporting_process ? RunningCode::current() : nullptr; }

std::string_view signal_text(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "signal 11 (Segmentation fault)";
    case SIGBUS:
      return "signal 7 (Bus error)";
    case SIGFPE:
      return "signal 8 (Floating point exception)";
    case SIGILL:
      return "signal 4 (Illegal instruction)";
    default:
      return "signal 6 (Aborted)";
  }
}

void on_fatal_signal(int signal) {
  const RunningCode* const code = code_to_blame();
  if (code == nullptr) {  // not ours to explain; SA_RESETHAND has put the default action back
    ::raise(signal);
    return;
  }
  LastWords words = words_about(*code);
  end_program(words.add("its code was ended by ").add(signal_text(signal)).add(kAfterwards));
}

void on_program_exit(int status, void* /*unused*/) { report_exit("exit", status); }
void on_quick_exit() { report_exit("quick_exit", 0); }

// A second stack for the handlers, since the first may be the one that overflowed.
class SecondStack {
 public:
  SecondStack() {
    memory_ = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (memory_ == MAP_FAILED) return;
    stack_t stack{};
    stack.ss_sp = memory_;
    stack.ss_size = kBytes;
    ::sigaltstack(&stack, nullptr);
  }
  ~SecondStack() {
    if (memory_ == MAP_FAILED) return;
    stack_t off{};
    off.ss_flags = SS_DISABLE;
    ::sigaltstack(&off, nullptr);
    ::munmap(memory_, kBytes);
  }
  SecondStack(const SecondStack&) = delete;
  SecondStack& operator=(const SecondStack&) = delete;
  void use() {}

 private:
  static constexpr size_t kBytes = 64 << 10;
  void* memory_ = MAP_FAILED;
};
thread_local SecondStack t_second_stack;

// Calls with a limit, by deadline. Its thread starts with the first of them and never ends.
class Watch {
 public:
  void add(int64_t deadline_ns, const RunningCode* code) {
    const std::lock_guard lock(mutex_);
    calls_.emplace(deadline_ns, code);
    if (!std::exchange(has_thread_, true)) std::thread([this] { watch(); }).detach();
    if (deadline_ns + kGraceNs < looks_ns_) changed_.notify_one();
  }
  void remove(int64_t deadline_ns, const RunningCode* code) {
    const std::lock_guard lock(mutex_);
    for (auto it = calls_.lower_bound(deadline_ns); it != calls_.end() && it->first == deadline_ns; ++it) {
      if (it->second != code) continue;
      calls_.erase(it);
      return;
    }
  }

 private:
  // It sleeps until the earliest deadline that it has seen, even if that call has ended: nearly all calls end long before,
  // and each would wake it, which takes a processor from the threads that compute.
  void watch() {
    std::unique_lock lock(mutex_);
    while (true) {
      looks_ns_ = calls_.empty() ? kNever : calls_.begin()->first + kGraceNs;
      if (looks_ns_ == kNever) {
        changed_.wait(lock);
        continue;
      }
      const int64_t left_ns = looks_ns_ - default_env().monotonic_ns();
      if (left_ns <= 0) {
        const RunningCode& code = *calls_.begin()->second;
        LastWords words = words_about(code);
        end_program(words.add("it still runs after its limit of ")
                        .add(code.limit_ms)
                        .add(" ms (plugins.call_timeout); a call in this process cannot be ended alone")
                        .add(kAfterwards));
      }
      changed_.wait_for(lock, std::chrono::nanoseconds(left_ns));
    }
  }

  static constexpr int64_t kGraceNs = kCallGraceMs * kMsInNs;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<int64_t, const RunningCode*> calls_;
  bool has_thread_ = false;
  int64_t looks_ns_ = 0;  // when its thread wakes up by itself; 0: it is awake
};
Watch& the_watch() {
  static Watch* const watch = new Watch;  // calls may run until the process ends
  return *watch;
}

}  // namespace

RunningCode::RunningCode(std::string_view its_label, std::string_view its_slot, int64_t its_step, int64_t its_limit_ms)
    : label(its_label),
      slot(its_slot),
      step(its_step),
      limit_ms(its_limit_ms),
      outer_(t_current),
      process_(::getpid()) {
  t_current = this;
  if (g_reports_installed.load(std::memory_order_relaxed)) t_second_stack.use();
  if (limit_ms <= 0) return;
  deadline_ns_ = default_env().monotonic_ns() + limit_ms * kMsInNs;
  the_watch().add(deadline_ns_, this);
}

RunningCode::RunningCode(const RunningCode* other)
    : label(other == nullptr ? "" : other->label),
      slot(other == nullptr ? "" : other->slot),
      step(other == nullptr ? 0 : other->step),
      outer_(t_current),
      process_(::getpid()) {
  t_current = other == nullptr ? nullptr : this;
  if (g_reports_installed.load(std::memory_order_relaxed)) t_second_stack.use();
}

RunningCode::~RunningCode() {
  if (::getpid() != process_) end_forked_child(*this);
  t_current = outer_;
  if (limit_ms > 0) the_watch().remove(deadline_ns_, this);
}

const RunningCode* RunningCode::current() { return t_current; }

void report_exit(std::string_view function, int status) {
  const RunningCode* const code = code_to_blame();
  if (code == nullptr) return;
  LastWords words = words_about(*code);
  words.add("it called ").add(function);
  if (function != "quick_exit") words.add("(").add(int64_t{status}).add(")");
  end_program(words.add(", which a plugin must not (rule R20)").add(kAfterwards));
}

void install_crash_reports() {
  g_reports_installed.store(true);
  t_second_stack.use();
  struct sigaction action {};
  action.sa_handler = on_fatal_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_ONSTACK | SA_NODEFER | SA_RESETHAND;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::sigaction(signal, &action, nullptr);
  g_reporting_process = ::getpid();
  ::on_exit(on_program_exit, nullptr);
  ::at_quick_exit(on_quick_exit);
}

}  // namespace mortise
