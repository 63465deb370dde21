// See signal.h. The handler only touches atomics and makes system calls: all are async-signal-safe.
#include "foundation/base/signal.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

#include "foundation/base/bottom_line.h"
#include "foundation/base/result.h"

namespace mortise {
namespace {

std::atomic<int> g_stop_signal{0};
std::atomic<int> g_followed_signal{0};
std::atomic<int64_t> g_requested_ms{INT64_MAX};  // on the monotonic clock
std::atomic<bool> g_stop_flag{false};
std::atomic<bool> g_requests_taken{false};
constexpr int64_t kSameRequest_ms = 1000;
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

// `text` without its 0 at the end.
template <size_t size>
void say(const char (&text)[size]) {
  (void)!write(STDERR_FILENO, text, size - 1);
}

void on_stop_signal(int signal) {
  int none = 0;
  if (g_requests_taken.load()) {
    g_stop_flag.store(true);
    if (g_stop_signal.compare_exchange_strong(none, signal)) return g_requested_ms.store(now_ms());
    if (now_ms() - g_requested_ms.load() < kSameRequest_ms) return;
    wipe_bottom_lines();
    say("mortise: stopped at once by a second signal; this step is not saved, --resume auto continues from the last "
        "checkpoint\n");
  } else {
    say("mortise: stopped by a signal\n");
    wipe_bottom_lines();
  }
  // Not _exit: the program's own would blame a plugin that happens to run on this thread.
  while (true) syscall(SYS_exit_group, static_cast<int>(ErrorKind::kSignal));
}

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);  // a write beyond `ulimit -f` fails with EFBIG, as any other
}

void take_stop_requests() { g_requests_taken.store(true); }

int stop_signal() {
  const int own = g_stop_signal.load(std::memory_order_relaxed);
  return own != 0 ? own : g_followed_signal.load(std::memory_order_relaxed);
}

const std::atomic<bool>& stop_flag() { return g_stop_flag; }

void set_stop_signal(int signal) {
  if (signal == 0) g_followed_signal.store(0);
  g_stop_signal.store(signal);
  g_requested_ms.store(signal == 0 ? INT64_MAX : now_ms());
  g_stop_flag.store(signal != 0);
}

void follow_stop_signal(int signal) {
  if (signal == 0) return;
  g_followed_signal.store(signal);
  g_stop_flag.store(true);
}

}  // namespace mortise
