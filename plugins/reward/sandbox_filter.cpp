#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sandbox.h"

namespace mortise {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArch = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t kArch = 0;
#endif
constexpr std::uint32_t kKilledCode = 128 + SIGKILL;  // how bwrap passes SIGKILL on

class Filter {
 public:
  void add(int code, std::uint32_t k, std::uint8_t yes = 0, std::uint8_t no = 0) {
    rules_.push_back({static_cast<std::uint16_t>(code), yes, no, k});
  }
  void load(std::size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)); }
  void load_argument(int index) {
    load(offsetof(seccomp_data, args) + static_cast<std::size_t>(index) * sizeof(std::uint64_t));
  }
  void answer(std::uint32_t value) { add(BPF_RET | BPF_K, value); }
  static std::uint32_t error(int code) { return SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(code); }

  void refuse(long number, int code) {
    load(offsetof(seccomp_data, nr));
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1);
    answer(error(code));
  }
  // Answers `verdict` if argument `index`, 32 bits of it under `mask`, is `value`.
  void answer_if(long number, int index, std::uint32_t mask, std::uint32_t value, std::uint32_t verdict) {
    load(offsetof(seccomp_data, nr));
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 4);
    load_argument(index);
    add(BPF_ALU | BPF_AND | BPF_K, mask);
    add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    answer(verdict);
  }
  void refuse_value(long number, int index, std::uint32_t value, int code) {
    answer_if(number, index, 0xFFFFFFFFU, value, error(code));
  }
  [[nodiscard]] std::string bytes() const {
    return {reinterpret_cast<const char*>(rules_.data()), rules_.size() * sizeof(sock_filter)};
  }

 private:
  std::vector<sock_filter> rules_;
};

// All that core/plugin/worker/limits.cpp refuses to a reward worker, and more: a program needs no sandbox of its own
// and no socket.
constexpr long kRefused[] = {
    // Other processes and the machine.
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pidfd_getfd, SYS_kcmp, SYS_bpf, SYS_perf_event_open,
    SYS_keyctl, SYS_add_key, SYS_request_key, SYS_userfaultfd, SYS_io_uring_setup, SYS_kexec_load, SYS_init_module,
    SYS_finit_module, SYS_delete_module, SYS_reboot, SYS_swapon, SYS_swapoff, SYS_settimeofday, SYS_clock_settime,
    SYS_sethostname, SYS_quotactl, SYS_acct,
    // Ways out of the file system.
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_setns, SYS_unshare, SYS_open_tree, SYS_move_mount,
    SYS_fsopen, SYS_fsmount, SYS_fsconfig, SYS_fspick, SYS_open_by_handle_at,
#ifdef SYS_mount_setattr
    SYS_mount_setattr,
#endif
    // Sockets.
    SYS_socket, SYS_connect, SYS_bind,
    // Memory that is in no address space, so that the limit on it does not hold.
    SYS_memfd_create, SYS_shmget, SYS_msgget, SYS_mq_open,
#ifdef SYS_memfd_secret
    SYS_memfd_secret,
#endif
    // Ways to be ended by SIGKILL: timers with a signal of choice, a strict filter of its own.
    SYS_timer_create, SYS_mq_notify, SYS_seccomp};

// A program must not be able to look as if the machine had ended it: its row would have no reward in place of a bad
// one.
void refuse_sigkill(Filter& f) {
  for (const long number : {SYS_kill, SYS_tkill, SYS_rt_sigqueueinfo, SYS_pidfd_send_signal})
    f.refuse_value(number, 1, SIGKILL, EPERM);
  for (const long number : {SYS_tgkill, SYS_rt_tgsigqueueinfo}) f.refuse_value(number, 2, SIGKILL, EPERM);
  f.refuse_value(SYS_prctl, 0, PR_SET_SECCOMP, EPERM);
  f.refuse_value(SYS_prctl, 0, PR_SET_PDEATHSIG, EPERM);
  f.refuse_value(SYS_fcntl, 1, F_SETSIG, EPERM);
  for (const std::uint32_t resource : {std::uint32_t(RLIMIT_CPU), std::uint32_t(RLIMIT_RTTIME)}) {
    // Past the hard limit the kernel sends SIGKILL.
    f.refuse_value(SYS_prlimit64, 1, resource, EPERM);
#ifdef SYS_setrlimit
    f.refuse_value(SYS_setrlimit, 0, resource, EPERM);
#endif
  }
  // Ends it with SIGSYS, a failure like any other.
  for (const long number : {SYS_exit, SYS_exit_group})
    f.answer_if(number, 0, 0xFF, kKilledCode, SECCOMP_RET_KILL_PROCESS);
}

void refuse_processes(Filter& f) {
#ifdef SYS_fork
  f.refuse(SYS_fork, EPERM);
  f.refuse(SYS_vfork, EPERM);
#endif
  f.refuse(SYS_clone3, ENOSYS);  // its flags lie behind a pointer; callers fall back to clone
  f.answer_if(SYS_clone, 0, CLONE_THREAD, 0, Filter::error(EPERM));
}

}  // namespace

std::string system_call_filter() {
  if (kArch == 0) return "";
  Filter f;
  f.load(offsetof(seccomp_data, arch));
  f.add(BPF_JMP | BPF_JEQ | BPF_K, kArch, 1, 0);
  f.answer(SECCOMP_RET_KILL_PROCESS);
#if defined(__x86_64__)
  f.load(offsetof(seccomp_data, nr));
  f.add(BPF_JMP | BPF_JGE | BPF_K, 0x40000000U, 0, 1);  // x32
  f.answer(Filter::error(ENOSYS));
#endif
  for (const long number : kRefused) f.refuse(number, EPERM);
  refuse_sigkill(f);
  refuse_processes(f);
  f.answer(SECCOMP_RET_ALLOW);
  return f.bytes();
}

}  // namespace mortise
