// Builds the filters of workers from the shared list and their own rules.
#include "plugin/worker/worker_filter.h"

#include <fcntl.h>
#include <seccomp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

namespace mortise {

#define CALL(name) \
  { SCMP_SYS(name), #name }

const std::vector<sandbox::SystemCall>& writing_calls() {
  static const std::vector<sandbox::SystemCall> calls = {
      CALL(mkdirat),
      CALL(mknodat),
      CALL(unlinkat),
      CALL(symlinkat),
      CALL(linkat),
      CALL(renameat2),
      CALL(fchmod),
      CALL(fchmodat),
      CALL(fchown),
      CALL(fchownat),
      CALL(truncate),
      CALL(setxattr),
      CALL(lsetxattr),
      CALL(removexattr),
      CALL(lremovexattr),
      CALL(fsetxattr),
      CALL(fremovexattr),
      CALL(utimensat),
      // Newer than libseccomp's table; their numbers are the same on every processor.
      {452, "fchmodat2"},
      {463, "setxattrat"},
      {466, "removexattrat"},
      // The older names, on processors that have them.
      CALL(creat),
      CALL(mkdir),
      CALL(mknod),
      CALL(unlink),
      CALL(rmdir),
      CALL(symlink),
      CALL(link),
      CALL(rename),
      CALL(renameat),
      CALL(chmod),
      CALL(chown),
      CALL(lchown),
      CALL(utime),
      CALL(utimes),
      CALL(futimesat)};
  return calls;
}

#undef CALL

sandbox::FilterProgram worker_filter(const WorkerLimits& limits) {
  sandbox::CallFilter filter;
  const auto refuse_all = [&](const std::vector<sandbox::SystemCall>& calls, int code) {
    for (const sandbox::SystemCall& call : calls) filter.refuse(call.number, code);
  };
  refuse_all(sandbox::never_needed_calls(), EPERM);
  if (!limits.make_sandboxes) {
    refuse_all(sandbox::sandbox_making_calls(), EPERM);
    sandbox::refuse_namespaces(filter);
  }
  if (!limits.network) {
    filter.refuse(SCMP_SYS(connect), EACCES);
    if (limits.make_sandboxes) {
      // bubblewrap brings up the loopback of a sandbox by netlink, and finds it by a local socket: neither reaches
      // another machine.
      static_assert(AF_UNIX < AF_NETLINK);
      filter.refuse_unless(SCMP_SYS(socket), 0, {AF_UNIX, AF_NETLINK}, EACCES);
    } else {
      filter.refuse(SCMP_SYS(socket), EACCES);
      filter.refuse(SCMP_SYS(bind), EACCES);
    }
  }
  if (!limits.write_files) {
    constexpr std::uint32_t kWriteBits = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
    filter.refuse_bits(SCMP_SYS(openat), 2, kWriteBits, EROFS);
    filter.refuse_bits(SCMP_SYS(open), 1, kWriteBits, EROFS);
    filter.refuse(SCMP_SYS(openat2), ENOSYS);  // its flags lie behind a pointer; callers fall back to openat
    refuse_all(writing_calls(), EROFS);
  }
  if (!limits.start_programs) {
    filter.refuse(SCMP_SYS(execve), EPERM);
    filter.refuse(SCMP_SYS(execveat), EPERM);
  }
  return filter.program();
}

sandbox::FilterProgram fork_server_filter(pid_t server, pid_t group) {
  sandbox::CallFilter filter;
  // -1 means every process that may get the signal; 1 is the sandbox's own.
  std::vector<pid_t> targets = {-1, 1, -group, server};
  if (server != group) targets.push_back(-server);
  filter.refuse(SCMP_SYS(pidfd_send_signal), EPERM);  // its target is a descriptor, which a filter cannot look at
  for (const pid_t target : targets) {
    for (const int call :
         {SCMP_SYS(kill), SCMP_SYS(rt_sigqueueinfo), SCMP_SYS(rt_tgsigqueueinfo), SCMP_SYS(tgkill), SCMP_SYS(tkill)})
      filter.refuse_value(call, 0, static_cast<std::uint32_t>(target), EPERM);
  }
  return filter.program();
}

}  // namespace mortise
