#include "plugin/worker/limits.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <span>
#include <vector>

#include "foundation/base/clock.h"

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
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
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

#if defined(__x86_64__)
constexpr uint32_t kArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArch = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArch = 0;
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
    return Error{ErrorKind::kConfig,
                 "plugins.worker_memory_mib = " + std::to_string(limits.memory_bytes >> 20) +
                     " leaves no room for the worker itself, which needs " + std::to_string(need_mib) +
                     " MiB before it scores a row",
                 limits.memory_where,
                 "set " + std::to_string(need_mib) + " and what the reward needs besides, or 0 for no limit"};
  }
  return set_limit(RLIMIT_AS, "memory", static_cast<rlim_t>(limits.memory_bytes));
}

// A program of the kernel's classic packet filter, built rule by rule; all that no rule names is allowed.
class SystemCallFilter {
 public:
  SystemCallFilter() {
    load(offsetof(seccomp_data, arch));
    // Another calling convention would have other numbers: nothing may come in through it.
    add(BPF_JMP | BPF_JEQ | BPF_K, kArch, 1, 0);
    answer(SECCOMP_RET_KILL_PROCESS);
#if defined(__x86_64__)
    load(offsetof(seccomp_data, nr));
    add(BPF_JMP | BPF_JGE | BPF_K, 0x40000000U, 0, 1);  // x32
    answer(SECCOMP_RET_ERRNO | ENOSYS);
#endif
  }

  void refuse(long number, int code) {
    load(offsetof(seccomp_data, nr));
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1);
    answer(SECCOMP_RET_ERRNO | static_cast<uint32_t>(code));
  }

  // Refuses the call where argument `index` has any of `bits`.
  void refuse_bits(long number, int index, uint32_t bits, int code) {
    load(offsetof(seccomp_data, nr));
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 3);
    load(static_cast<uint32_t>(offsetof(seccomp_data, args)) + static_cast<uint32_t>(index) * 8);
    add(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
    answer(SECCOMP_RET_ERRNO | static_cast<uint32_t>(code));
  }

  // Refuses the call but where argument `index`, 32 bits of it, is one of `values`.
  void refuse_unless(long number, int index, std::span<const int32_t> values, int code) {
    load(offsetof(seccomp_data, nr));
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, static_cast<uint8_t>(2 + values.size()));
    load(static_cast<uint32_t>(offsetof(seccomp_data, args)) + static_cast<uint32_t>(index) * 8);
    for (size_t i = 0; i < values.size(); ++i)
      add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(values[i]), static_cast<uint8_t>(values.size() - i), 0);
    answer(SECCOMP_RET_ERRNO | static_cast<uint32_t>(code));
  }

  // Refuses the call where argument `index`, 32 bits of it, is one of `values`.
  void refuse_values(long number, int index, std::span<const int32_t> values, int code) {
    load(offsetof(seccomp_data, nr));
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, static_cast<uint8_t>(1 + 2 * values.size()));
    load(static_cast<uint32_t>(offsetof(seccomp_data, args)) + static_cast<uint32_t>(index) * 8);
    for (const int32_t value : values) {
      add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(value), 0, 1);
      answer(SECCOMP_RET_ERRNO | static_cast<uint32_t>(code));
    }
  }

  Result<> install() {
    answer(SECCOMP_RET_ALLOW);
    sock_fprog program{static_cast<unsigned short>(rules_.size()), rules_.data()};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0)
      return {};
    return Error{ErrorKind::kPlugin, std::strerror(errno), "seccomp", ""};
  }

 private:
  void add(int code, uint32_t k, uint8_t yes, uint8_t no) {
    rules_.push_back({static_cast<uint16_t>(code), yes, no, k});
  }
  void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset), 0, 0); }
  void answer(uint32_t value) { add(BPF_RET | BPF_K, value, 0, 0); }

  std::vector<sock_filter> rules_;
};

// Making a sandbox for a program that nobody has read; without that permission they are ways out of one.
constexpr long kSandboxing[] = {SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_unshare};

// Nothing that scores a row needs these; some are ways out of a sandbox, some reach into other processes.
constexpr long kNeverNeeded[] = {SYS_ptrace,
                                 SYS_process_vm_readv,
                                 SYS_process_vm_writev,
                                 SYS_setns,
                                 SYS_reboot,
                                 SYS_kexec_load,
                                 SYS_init_module,
                                 SYS_swapon,
                                 SYS_finit_module,
                                 SYS_delete_module,
                                 SYS_bpf,
                                 SYS_perf_event_open,
                                 SYS_keyctl,
                                 SYS_add_key,
                                 SYS_request_key,
                                 SYS_userfaultfd,
                                 SYS_settimeofday,
                                 SYS_clock_settime,
                                 SYS_sethostname,
                                 SYS_quotactl,
                                 SYS_acct,
                                 SYS_swapoff,
                                 SYS_io_uring_setup,
                                 SYS_open_tree,
                                 SYS_move_mount,
                                 SYS_fsopen,
                                 SYS_fsmount,
                                 SYS_pidfd_getfd};

constexpr long kWriting[] = {
    SYS_mkdirat,   SYS_mknodat,     SYS_unlinkat,     SYS_symlinkat, SYS_linkat,       SYS_renameat2,
    SYS_fchmod,    SYS_fchmodat,    SYS_fchown,       SYS_fchownat,  SYS_truncate,     SYS_setxattr,
    SYS_lsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fsetxattr, SYS_fremovexattr, SYS_utimensat,
#ifdef SYS_open  // the older names, where the machine has them
    SYS_creat,     SYS_mkdir,       SYS_mknod,        SYS_unlink,    SYS_rmdir,        SYS_symlink,
    SYS_link,      SYS_rename,      SYS_renameat,     SYS_chmod,     SYS_chown,        SYS_lchown,
    SYS_utime,     SYS_utimes,      SYS_futimesat,
#endif
};

Result<> install_filter(const WorkerLimits& limits) {
  SystemCallFilter filter;
  for (const long number : kNeverNeeded) filter.refuse(number, EPERM);
  if (!limits.make_sandboxes) {
    for (const long number : kSandboxing) filter.refuse(number, EPERM);
  }
  if (!limits.network) {
    filter.refuse(SYS_connect, EACCES);
    if (limits.make_sandboxes) {
      // bubblewrap brings up the loopback of a sandbox by netlink, and finds it by a local socket: neither reaches
      // another machine.
      constexpr int32_t kLocal[] = {AF_NETLINK, AF_UNIX};
      filter.refuse_unless(SYS_socket, 0, kLocal, EACCES);
    } else {
      filter.refuse(SYS_socket, EACCES);
      filter.refuse(SYS_bind, EACCES);
    }
  }
  if (!limits.write_files) {
    constexpr uint32_t kWriteBits = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
    filter.refuse_bits(SYS_openat, 2, kWriteBits, EROFS);
    filter.refuse(SYS_openat2, ENOSYS);  // its flags lie behind a pointer; callers fall back to openat
#ifdef SYS_open
    filter.refuse_bits(SYS_open, 1, kWriteBits, EROFS);
#endif
    for (const long number : kWriting) filter.refuse(number, EROFS);
  }
  if (!limits.start_programs) {
    filter.refuse(SYS_execve, EPERM);
    filter.refuse(SYS_execveat, EPERM);
  }
  return filter.install();
}

}  // namespace

void protect_fork_server(const WorkerLimits& limits, pid_t server) {
  if (kArch == 0 || limits.make_sandboxes) return;  // inside a sandbox of its own these numbers are other processes
  // -1 is every process that may be told; 1 is the sandbox's own.
  const int32_t targets[] = {-1, 1, -1 * ::getpgid(server), server, -1 * server};
  SystemCallFilter filter;
  filter.refuse_values(SYS_kill, 0, targets, EPERM);
  filter.refuse_values(SYS_rt_sigqueueinfo, 0, targets, EPERM);
  filter.refuse_values(SYS_tgkill, 0, targets, EPERM);
  filter.refuse_values(SYS_tkill, 0, targets, EPERM);
  (void)filter.install();  // where the system has no such filters, apply_limits has said so
}

std::string memory_setting(const WorkerLimits& limits) {
  if (limits.memory_bytes <= 0 || !kCanLimitMemory) return "";
  return "plugins.worker_memory_mib = " + std::to_string(limits.memory_bytes >> 20) +
         (limits.memory_where.empty() ? "" : " (" + limits.memory_where + ")");
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
  const auto filtered =
      kArch == 0 ? Result<>(Error{ErrorKind::kPlugin, "not on this processor", "seccomp", ""}) : install_filter(limits);
  if (!filtered.ok()) {
    say("no filter of system calls: " + filtered.error().what);
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
