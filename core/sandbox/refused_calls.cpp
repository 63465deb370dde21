// The lists of refused system calls.
#include "sandbox/refused_calls.h"

#include <sched.h>
#include <seccomp.h>

#include <cerrno>

namespace mortise::sandbox {

#define CALL(name) \
  { SCMP_SYS(name), #name }

const std::vector<SystemCall>& never_needed_calls() {
  static const std::vector<SystemCall> calls = {
      // Other processes.
      CALL(ptrace), CALL(process_vm_readv), CALL(process_vm_writev), CALL(pidfd_getfd), CALL(kcmp),
      // The kernel.
      CALL(bpf), CALL(perf_event_open), CALL(keyctl), CALL(add_key), CALL(request_key), CALL(userfaultfd),
      CALL(io_uring_setup), CALL(kexec_load), CALL(kexec_file_load), CALL(init_module), CALL(finit_module),
      CALL(delete_module),
      // The machine.
      CALL(reboot), CALL(swapon), CALL(swapoff), CALL(settimeofday), CALL(clock_settime), CALL(sethostname),
      CALL(quotactl), CALL(acct),
      // Ways out of a file system.
      CALL(setns), CALL(open_tree), CALL(move_mount), CALL(fsopen), CALL(fsmount), CALL(fsconfig), CALL(fspick),
      CALL(open_by_handle_at)};
  return calls;
}

const std::vector<SystemCall>& sandbox_making_calls() {
  static const std::vector<SystemCall> calls = {CALL(mount),  CALL(umount2), CALL(pivot_root),
                                                CALL(chroot), CALL(unshare), CALL(mount_setattr)};
  return calls;
}

#undef CALL

const std::vector<NamespaceFlag>& namespace_flags() {
  static const std::vector<NamespaceFlag> flags = {
      {CLONE_NEWNS, "mount"},  {CLONE_NEWCGROUP, "cgroup"}, {CLONE_NEWUTS, "uts"}, {CLONE_NEWIPC, "ipc"},
      {CLONE_NEWUSER, "user"}, {CLONE_NEWPID, "pid"},       {CLONE_NEWNET, "net"}};
  return flags;
}

void refuse_namespaces(CallFilter& filter) {
  std::uint32_t bits = 0;
  for (const NamespaceFlag& flag : namespace_flags()) bits |= flag.bit;
  filter.refuse_bits(SCMP_SYS(clone), 0, bits, EPERM);
  filter.refuse(SCMP_SYS(clone3), ENOSYS);
}

}  // namespace mortise::sandbox
