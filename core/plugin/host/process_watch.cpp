// Compares the process with what it was, and restores it.
#include "plugin/host/process_watch.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cfenv>
#include <climits>
#include <clocale>
#include <cstring>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr std::array kWatchedSignals = {SIGINT,  SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ, SIGCHLD,
                                        SIGALRM, SIGSEGV, SIGBUS, SIGFPE,  SIGILL,  SIGABRT};

// Rounding, traps and flush to zero, without the sticky flags of what happened.
uint32_t floating_point_mode() {
#if defined(__x86_64__)
  return _mm_getcsr() & 0xFFC0U;
#else
  return static_cast<uint32_t>(std::fegetround());
#endif
}
void set_floating_point_mode(uint32_t mode) {
#if defined(__x86_64__)
  _mm_setcsr((_mm_getcsr() & ~0xFFC0U) | mode);
#else
  std::fesetround(static_cast<int>(mode));
#endif
}

// The process as it was at install.
struct Baseline {
  std::array<struct sigaction, kWatchedSignals.size()> actions{};
  std::string locale;
  std::array<char, PATH_MAX> folder{};
  int sentinel = -1;  // a descriptor that nobody needs: gone if a plugin closes what is not its own
  ino_t sentinel_inode = 0;
};
Baseline g_baseline;
std::atomic<bool> g_watch_installed{false};

bool is_same_action(const struct sigaction& one, const struct sigaction& other) {
  return one.sa_sigaction == other.sa_sigaction;
}

std::string changed_signal() {
  std::string change;
  for (size_t i = 0; i < kWatchedSignals.size(); ++i) {
    struct sigaction now {};
    if (::sigaction(kWatchedSignals[i], nullptr, &now) != 0 || is_same_action(now, g_baseline.actions[i])) continue;
    ::sigaction(kWatchedSignals[i], &g_baseline.actions[i], nullptr);
    change = fmt::format("the action of signal {} ({})", kWatchedSignals[i], ::strsignal(kWatchedSignals[i]));
  }
  return change;
}

std::string changed_locale() {
  std::string change;
  if (::uselocale(nullptr) != LC_GLOBAL_LOCALE) {
    ::uselocale(LC_GLOBAL_LOCALE);
    change = "the thread's locale";
  }
  const char* const now = std::setlocale(LC_ALL, nullptr);
  if (now == nullptr || g_baseline.locale == now) return change;
  change = fmt::format("the locale ({})", quote(now));
  std::setlocale(LC_ALL, g_baseline.locale.c_str());
  return change;
}

std::string changed_folder() {
  std::array<char, PATH_MAX> now{};
  if (::getcwd(now.data(), now.size()) == nullptr || std::strcmp(now.data(), g_baseline.folder.data()) == 0) return "";
  if (::chdir(g_baseline.folder.data()) != 0)
    return fmt::format("the working directory, to {} for good", quote(now.data()));
  return "the working directory, to " + quote(now.data());
}

bool has_lost_descriptors() {
  struct stat status {};
  return g_baseline.sentinel >= 0 &&
         (::fstat(g_baseline.sentinel, &status) != 0 || status.st_ino != g_baseline.sentinel_inode);
}

}  // namespace

void install_process_watch() {
  for (size_t i = 0; i < kWatchedSignals.size(); ++i) ::sigaction(kWatchedSignals[i], nullptr, &g_baseline.actions[i]);
  g_baseline.locale = std::setlocale(LC_ALL, nullptr);
  if (::getcwd(g_baseline.folder.data(), g_baseline.folder.size()) == nullptr) g_baseline.folder[0] = '\0';
  struct stat status {};
  g_baseline.sentinel = ::memfd_create("mortise-sentinel", MFD_CLOEXEC);
  if (g_baseline.sentinel >= 0 && ::fstat(g_baseline.sentinel, &status) == 0) g_baseline.sentinel_inode = status.st_ino;
  g_watch_installed.store(true);
}

ProcessWatch::ProcessWatch() : floating_point_(floating_point_mode()) {
  if (g_watch_installed.load(std::memory_order_relaxed)) ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked_);
}

std::string ProcessWatch::take_change() const {
  std::string change;
  if (floating_point_mode() != floating_point_) {
    set_floating_point_mode(floating_point_);
    change = "the floating-point mode";
  }
  if (!g_watch_installed.load(std::memory_order_relaxed)) return change;
  sigset_t blocked{};  // the kernel fills only the part that it has
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  if (std::memcmp(&blocked, &blocked_, sizeof blocked) != 0) {
    ::pthread_sigmask(SIG_SETMASK, &blocked_, nullptr);
    change = "the blocked signals of its thread";
  }
  for (std::string next : {changed_signal(), changed_locale(), changed_folder()}) {
    if (!next.empty()) change = std::move(next);
  }
  if (has_lost_descriptors()) change = "the program's descriptors: it closed some that are not its own";
  return change;
}

}  // namespace mortise
