#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
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

class Filter {
 public:
  void add(int code, std::uint32_t k, std::uint8_t yes = 0, std::uint8_t no = 0) {
    rules_.push_back({static_cast<std::uint16_t>(code), yes, no, k});
  }
  void load(std::size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)); }
  void answer(std::uint32_t value) { add(BPF_RET | BPF_K, value); }
  void refuse(long number, int code) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1);
    answer(SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(code));
  }
  [[nodiscard]] std::string bytes() const {
    return {reinterpret_cast<const char*>(rules_.data()), rules_.size() * sizeof(sock_filter)};
  }

 private:
  std::vector<sock_filter> rules_;
};

// memfd_create, shmget and msgget give memory that is in no address space, where the limit on that would not hold it.
constexpr long kRefused[] = {SYS_ptrace,
                             SYS_process_vm_readv,
                             SYS_process_vm_writev,
                             SYS_mount,
                             SYS_umount2,
                             SYS_pivot_root,
                             SYS_chroot,
                             SYS_setns,
                             SYS_unshare,
                             SYS_bpf,
                             SYS_perf_event_open,
                             SYS_keyctl,
                             SYS_add_key,
                             SYS_request_key,
                             SYS_userfaultfd,
                             SYS_io_uring_setup,
                             SYS_memfd_create,
                             SYS_shmget,
                             SYS_msgget,
                             SYS_socket,
                             SYS_connect,
                             SYS_bind,
                             SYS_kexec_load,
                             SYS_init_module,
                             SYS_finit_module};

}  // namespace

std::string system_call_filter(bool processes) {
  if (kArch == 0) return "";
  Filter f;
  f.load(offsetof(seccomp_data, arch));
  f.add(BPF_JMP | BPF_JEQ | BPF_K, kArch, 1, 0);
  f.answer(SECCOMP_RET_KILL_PROCESS);
  f.load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
  f.add(BPF_JMP | BPF_JGE | BPF_K, 0x40000000U, 0, 1);  // x32
  f.answer(SECCOMP_RET_ERRNO | ENOSYS);
#endif
  for (const long number : kRefused) f.refuse(number, EPERM);
  if (!processes) {
#ifdef SYS_fork
    f.refuse(SYS_fork, EPERM);
    f.refuse(SYS_vfork, EPERM);
#endif
    f.refuse(SYS_clone3, ENOSYS);  // its flags lie behind a pointer; callers fall back to clone
    f.add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(SYS_clone), 0, 3);
    f.load(offsetof(seccomp_data, args));
    f.add(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0);
    f.answer(SECCOMP_RET_ERRNO | EPERM);
  }
  f.answer(SECCOMP_RET_ALLOW);
  return f.bytes();
}

}  // namespace mortise
