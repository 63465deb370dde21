// See signal.h. The handler only touches atomics and makes system calls: all are async-signal-safe.
#include "foundation/base/signal.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "foundation/base/bottom_line.h"
#include "foundation/base/result.h"

namespace mortise {
namespace {

std::atomic<int> g_stop_signal{0};
std::atomic<int> g_followed_signal{0};
std::atomic<bool> g_stop_flag{false};
std::atomic<bool> g_requests_taken{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_stop_signal(int signal) {
  int none = 0;
  const bool is_request = g_requests_taken.load();
  if (is_request) {
    g_stop_flag.store(true);
    if (g_stop_signal.compare_exchange_strong(none, signal)) return;
  }
  static constexpr char kLoading[] = "mortise: stopped by a signal\n";
  if (!is_request) (void)!write(STDERR_FILENO, kLoading, sizeof kLoading - 1);
  wipe_bottom_lines();
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
  g_stop_flag.store(signal != 0);
}

void follow_stop_signal(int signal) {
  if (signal == 0) return;
  g_followed_signal.store(signal);
  g_stop_flag.store(true);
}

}  // namespace mortise
