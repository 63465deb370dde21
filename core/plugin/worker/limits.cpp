// Sets resource limits and the processor mask, and installs the filter of system calls.
#include "plugin/worker/limits.h"

#include <fmt/core.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include "foundation/base/clock.h"
#include "plugin/worker/worker_filter.h"

namespace mortise {
namespace {

Result<> set_limit(int resource, const char* name, rlim_t value) {
  rlimit current{};
  ::getrlimit(static_cast<__rlimit_resource>(resource), &current);
  if (current.rlim_max != RLIM_INFINITY && value > current.rlim_max) value = current.rlim_max;
  const rlimit wanted{value, value};
  if (::setrlimit(static_cast<__rlimit_resource>(resource), &wanted) == 0) return {};
  return Error{ErrorKind::kPlugin, std::string("setting the limit failed: ") + std::strerror(errno), name,
               "raise or remove it in [plugins]"};
}

std::string mebibytes(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

std::string counted(int64_t count, const char* one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

// The last `count` of the processors that this process may run on; the trainer's threads tend to sit on the first.
// Returns how many it may run on now; 0: the system refused.
int64_t share_cpus(int64_t count) {
  cpu_set_t all, some;
  if (::sched_getaffinity(0, sizeof all, &all) != 0) return 0;
  CPU_ZERO(&some);
  int64_t taken = 0;
  for (int cpu = CPU_SETSIZE - 1; cpu >= 0 && taken < count; --cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_SET(cpu, &some);
    ++taken;
  }
  return ::sched_setaffinity(0, sizeof some, &some) == 0 ? taken : 0;
}

// Sanitizers map terabytes of shadow memory.
#if defined(MORTISE_ASAN) || defined(MORTISE_TSAN)
constexpr bool kCanLimitMemory = false;
#else
constexpr bool kCanLimitMemory = true;
#endif

// What a worker needs to come up: what it has mapped already, the pack (read, copied and mapped), and room to work in.
int64_t memory_need(uint64_t pack_bytes) {
  constexpr int64_t kRoom = int64_t{16} << 20;
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages;
  return pages * ::sysconf(_SC_PAGESIZE) + 3 * static_cast<int64_t>(pack_bytes) + kRoom;
}

Result<> limit_memory(const WorkerLimits& limits, uint64_t pack_bytes) {
  if (const int64_t need = memory_need(pack_bytes); limits.memory_bytes < need) {
    const int64_t need_mib = (need + (int64_t{1} << 20) - 1) >> 20;
    return Error{
        ErrorKind::kConfig,
        fmt::format("plugins.worker_memory_mib = {} leaves no room for the worker itself, which needs {} MiB before it "
                    "does any work",
                    limits.memory_bytes >> 20, need_mib),
        limits.memory_where, fmt::format("set at least {} plus what the plugin needs, or 0 for no limit", need_mib)};
  }
  return set_limit(RLIMIT_AS, "memory", static_cast<rlim_t>(limits.memory_bytes));
}

// "" or why there is no filter.
std::string install_worker_filter(const WorkerLimits& limits) {
  const sandbox::FilterProgram filter = worker_filter(limits);
  if (filter.bytes.empty()) return filter.fault;
  const int code = sandbox::install_filter(filter.bytes);
  return code == 0 ? "" : std::strerror(code);
}

}  // namespace

std::string fork_server_guard(const WorkerLimits& limits) {
  if (limits.make_sandboxes) return "";  // inside a sandbox of its own these numbers are other processes
  return fork_server_filter(::getpid(), ::getpgrp()).bytes;
}

void protect_fork_server(const std::string& guard) {
  if (!guard.empty()) (void)sandbox::install_filter(guard);  // if the system has no filters, apply_limits has said so
}

std::string memory_setting(const WorkerLimits& limits) {
  if (limits.memory_bytes <= 0 || !kCanLimitMemory) return "";
  return fmt::format("plugins.worker_memory_mib = {}{}", limits.memory_bytes >> 20,
                     limits.memory_where.empty() ? "" : fmt::format(" ({})", limits.memory_where));
}

Result<std::string> apply_limits(const WorkerLimits& limits, uint64_t pack_bytes) {
  std::string text;
  const auto say = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  // 1 and not 0: with 0 the kernel still feeds a core file to a program that collects them, with 1 it makes none.
  TRY(set_limit(RLIMIT_CORE, "core files", 1));
  if (limits.memory_bytes > 0 && kCanLimitMemory) {
    TRY(limit_memory(limits, pack_bytes));
    say("memory " + mebibytes(limits.memory_bytes));
  }
  if (limits.file_bytes > 0) {
    // The sealed copy of the pack, which is what is loaded, counts as a file.
    const auto longest = std::max(static_cast<rlim_t>(limits.file_bytes), static_cast<rlim_t>(pack_bytes));
    TRY(set_limit(RLIMIT_FSIZE, "file size", longest));
    if (limits.write_files) say("files of " + mebibytes(limits.file_bytes));
  }
  if (limits.open_files > 0) {
    TRY(set_limit(RLIMIT_NOFILE, "open files", static_cast<rlim_t>(limits.open_files)));
    say(counted(limits.open_files, "open file"));
  }
  if (limits.cpu_ms > 0) say(format_duration(static_cast<double>(limits.cpu_ms) * 1e-3) + " of CPU a call");
  if (limits.num_cpus > 0) {
    const int64_t count = share_cpus(limits.num_cpus);
    say(count > 0 ? "on " + counted(count, "processor") : "on all processors: no others could be chosen");
  }
  if (const std::string fault = install_worker_filter(limits); !fault.empty()) {
    say("no filter of system calls: " + fault);
    return text;
  }
  say(limits.network ? "network" : "no network");
  say(limits.write_files ? "may write files" : "writes no files");
  say(limits.start_programs ? "may start programs" : "starts no programs");
  if (limits.make_sandboxes) say("may make sandboxes");
  return text;
}

CpuWatch::~CpuWatch() {
  if (cpu_ms_ > 0) ::timer_delete(timer_);
}

Result<> CpuWatch::start(int64_t cpu_ms) {
  if (cpu_ms <= 0) return {};
  sigevent at_end{};
  at_end.sigev_notify = SIGEV_SIGNAL;
  at_end.sigev_signo = SIGXCPU;
  if (::timer_create(CLOCK_PROCESS_CPUTIME_ID, &at_end, &timer_) != 0) {
    return Error{ErrorKind::kPlugin, std::string("CPU time cannot be limited here: ") + std::strerror(errno), "",
                 "set plugins.worker_cpu_time = \"0s\""};
  }
  ::signal(SIGXCPU, SIG_DFL);  // it ends the process
  cpu_ms_ = cpu_ms;
  return {};
}

void CpuWatch::begin_call() { set(cpu_ms_); }
void CpuWatch::end_call() { set(0); }

void CpuWatch::set(int64_t cpu_ms) {
  if (cpu_ms_ <= 0) return;
  const itimerspec time{{0, 0}, {cpu_ms / 1000, cpu_ms % 1000 * 1'000'000}};
  ::timer_settime(timer_, 0, &time, nullptr);
}

}  // namespace mortise
