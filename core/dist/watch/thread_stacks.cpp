// Lists the threads in /proc, and lets each note its own stack in a signal handler.
#include "dist/watch/thread_stacks.h"

#include <execinfo.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "foundation/base/text.h"

namespace mortise {

namespace {

constexpr int kMaxFrames = 48;
constexpr int kOwnFrames = 2;  // the handler's and the kernel's
constexpr size_t kMaxThreads = 256;

// What the signal handler of the asked thread fills.
std::array<void*, kMaxFrames> g_frames;
std::atomic<int> g_num_frames{-1};
std::atomic<pid_t> g_asked{0};

void note_stack(int /*signal*/) {
  const int saved = errno;
  pid_t me = static_cast<pid_t>(syscall(SYS_gettid));
  if (g_asked.compare_exchange_strong(me, 0)) g_num_frames = backtrace(g_frames.data(), kMaxFrames);
  errno = saved;
}

std::vector<pid_t> threads_of_process() {
  std::vector<pid_t> threads;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    const auto id = parse_i64(entry.path().filename().string());
    if (id && threads.size() < kMaxThreads) threads.push_back(static_cast<pid_t>(*id));
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

std::string stack_of(pid_t thread, int signal) {
  g_num_frames = -1;
  g_asked = thread;
  if (syscall(SYS_tgkill, getpid(), thread, signal) != 0) return {};
  for (int i = 0; i < 200 && g_num_frames < 0; ++i) {
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  pid_t asked = thread;
  if (g_num_frames < 0 && g_asked.compare_exchange_strong(asked, 0)) return "  (it does not answer)\n";
  for (int i = 0; i < 200 && g_num_frames < 0; ++i) {  // it is writing now
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  const int count = g_num_frames;
  char** names = count > 0 ? backtrace_symbols(g_frames.data(), count) : nullptr;
  if (names == nullptr) return "  (unknown)\n";
  std::string text;
  for (int i = std::min(kOwnFrames, count); i < count; ++i) text += fmt::format("  {}\n", names[i]);
  std::free(names);  // NOLINT(cppcoreguidelines-no-malloc): backtrace_symbols allocates so
  return text;
}

}  // namespace

std::string thread_stacks() {
  void* first[1];
  backtrace(first, 1);  // loads what the handler must not load
  const int signal = SIGRTMIN + 5;
  struct sigaction action {};
  action.sa_handler = note_stack;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (sigaction(signal, &action, nullptr) != 0) return {};
  std::string text;
  for (const pid_t thread : threads_of_process()) {
    std::string name;
    std::getline(std::ifstream(fmt::format("/proc/self/task/{}/comm", thread)), name);
    text +=
        fmt::format("thread {} {}{}:\n{}", thread, name, thread == getpid() ? " (main)" : "", stack_of(thread, signal));
  }
  return text;  // the handler stays: a thread that answers late must not end the process
}

}  // namespace mortise
