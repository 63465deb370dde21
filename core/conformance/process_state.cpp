// Reads the state of the process from /proc and the C library, and describes differences.
#include "conformance/process_state.h"

#include <fmt/core.h>

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <climits>
#include <clocale>
#include <csignal>
#include <cstring>
#include <thread>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "foundation/base/text.h"

namespace mortise::check {
namespace {

std::vector<std::string> names_in(const char* folder) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(folder);
  if (dir == nullptr) return names;
  const std::string own = std::to_string(::dirfd(dir));
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && name != own) names.push_back(name);
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> open_descriptors() {
  std::vector<std::string> out;
  for (const std::string& name : names_in("/proc/self/fd")) {
    char target[PATH_MAX];
    const ssize_t size = ::readlink(("/proc/self/fd/" + name).c_str(), target, sizeof target);
    if (size > 0) out.push_back(fmt::format("{} -> {}", name, std::string(target, static_cast<size_t>(size))));
  }
  return out;
}

std::array<std::string, 65> signal_state() {
  std::array<std::string, 65> out;
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  for (int signal = 1; signal <= 64; ++signal) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0) continue;
    const auto handler = reinterpret_cast<uintptr_t>(action.sa_sigaction);
    out[static_cast<size_t>(signal)] =
        fmt::format("{} {}{}", handler, action.sa_flags, ::sigismember(&blocked, signal) == 1 ? " blocked" : "");
  }
  return out;
}

std::string floating_point_state() {
  std::string out = fmt::format("rounding {}, traps {}", std::fegetround(), ::fegetexcept());
#if defined(__x86_64__)
  out += ", control " + std::to_string(_mm_getcsr() & 0xFFC0U);  // without the sticky flags
#endif
  return out;
}

}  // namespace

ProcessState ProcessState::now() {
  ProcessState out;
  out.signals = signal_state();
  out.locale = std::setlocale(LC_ALL, nullptr);
  out.locale += ::uselocale(nullptr) == LC_GLOBAL_LOCALE ? "" : ", a thread's own";
  char folder[PATH_MAX];
  out.folder = ::getcwd(folder, sizeof folder) == nullptr ? "" : folder;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) out.environment.emplace_back(*entry);
  std::sort(out.environment.begin(), out.environment.end());
  out.umask = ::umask(0);
  ::umask(out.umask);
  out.floating_point = floating_point_state();
  out.descriptors = open_descriptors();
  out.num_threads = static_cast<int64_t>(names_in("/proc/self/task").size());
  int status = 0;
  out.has_children = ::waitpid(-1, &status, WNOHANG) >= 0;
  return out;
}

std::string signal_difference(const ProcessState& before, const ProcessState& after) {
  for (size_t signal = 1; signal < before.signals.size(); ++signal) {
    if (before.signals[signal] != after.signals[signal])
      return fmt::format("the action of signal {} ({})", signal, ::strsignal(static_cast<int>(signal)));
  }
  return "";
}

std::string environment_difference(const ProcessState& before, const ProcessState& after) {
  if (before.environment == after.environment) return "";
  for (const auto& [one, other] :
       {std::pair(&after.environment, &before.environment), std::pair(&before.environment, &after.environment)}) {
    for (const std::string& entry : *one) {
      if (!std::binary_search(other->begin(), other->end(), entry))
        return "the environment variable " + quote(entry.substr(0, entry.find('=')));
    }
  }
  return "the environment";
}

std::string descriptor_difference(const ProcessState& before, const ProcessState& after) {
  for (const std::string& entry : after.descriptors) {
    if (std::find(before.descriptors.begin(), before.descriptors.end(), entry) == before.descriptors.end())
      return fmt::format("descriptor {} stays open", entry);
  }
  for (const std::string& entry : before.descriptors) {
    if (std::find(after.descriptors.begin(), after.descriptors.end(), entry) == after.descriptors.end())
      return fmt::format("descriptor {}, which is not its own, is gone", entry);
  }
  return "";
}

std::string difference(const ProcessState& before, const ProcessState& after) {
  if (std::string signal = signal_difference(before, after); !signal.empty()) return signal;
  if (before.locale != after.locale) return fmt::format("the locale ({})", after.locale);
  if (before.folder != after.folder) return fmt::format("the working directory ({})", after.folder);
  if (std::string entry = environment_difference(before, after); !entry.empty()) return entry;
  if (before.umask != after.umask) return "the umask";
  if (before.floating_point != after.floating_point)
    return fmt::format("the floating-point mode ({})", after.floating_point);
  if (std::string entry = descriptor_difference(before, after); !entry.empty()) return entry;
  if (settled_threads(before.num_threads) > before.num_threads) return "the number of threads";
  if (before.has_children != after.has_children) return "a child process";
  return "";
}

int64_t settled_threads(int64_t expected) {
  int64_t count = 0;
  for (int i = 0; i < 200; ++i) {
    count = static_cast<int64_t>(names_in("/proc/self/task").size());
    if (count <= expected) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return count;
}

}  // namespace mortise::check
