// Every system call that a reward worker is refused, with the errno that it gets, and what stays allowed.
#include "plugin/worker/worker_filter.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <csignal>

#include "support/filter_verdict.h"

namespace mortise::test {
namespace {

using sandbox::SystemCall;

constexpr Verdict kAllowed{kLetThrough, 0};

// The strictest limits, each of which can be lifted.
WorkerLimits strict() {
  WorkerLimits limits;
  limits.network = limits.write_files = limits.start_programs = false;
  return limits;
}

std::string name_of_call(const testing::TestParamInfo<SystemCall>& info) { return info.param.name; }

class NeverNeeded : public testing::TestWithParam<SystemCall> {};

TEST_P(NeverNeeded, IsRefusedWhateverIsAllowed) {
  if (GetParam().number < 0) GTEST_SKIP() << "this processor has no such call";
  WorkerLimits all;
  all.make_sandboxes = true;
  for (const WorkerLimits& limits : {strict(), all})
    EXPECT_EQ(verdict_of_call(worker_filter(limits), GetParam().number), (Verdict{EPERM, 0}));
}
INSTANTIATE_TEST_SUITE_P(Worker, NeverNeeded, testing::ValuesIn(sandbox::never_needed_calls()), name_of_call);

class SandboxMaking : public testing::TestWithParam<SystemCall> {};

TEST_P(SandboxMaking, NeedsItsPermission) {
  WorkerLimits limits;
  EXPECT_EQ(verdict_of_call(worker_filter(limits), GetParam().number), (Verdict{EPERM, 0}));
  limits.make_sandboxes = true;
  EXPECT_EQ(verdict_of_call(worker_filter(limits), GetParam().number), kAllowed);
}
INSTANTIATE_TEST_SUITE_P(Worker, SandboxMaking, testing::ValuesIn(sandbox::sandbox_making_calls()), name_of_call);

std::string name_of_flag(const testing::TestParamInfo<sandbox::NamespaceFlag>& info) { return info.param.name; }

class NewNamespace : public testing::TestWithParam<sandbox::NamespaceFlag> {};

TEST_P(NewNamespace, NeedsThePermissionToMakeSandboxes) {
  WorkerLimits limits;
  const long flags = static_cast<long>(GetParam().bit) | SIGCHLD;
  EXPECT_EQ(verdict_of_call(worker_filter(limits), SYS_clone, {flags}), (Verdict{EPERM, 0}));
  EXPECT_EQ(verdict_of_call(worker_filter(limits), SYS_clone3), (Verdict{ENOSYS, 0}));
  limits.make_sandboxes = true;
  EXPECT_EQ(verdict_of_call(worker_filter(limits), SYS_clone, {flags}), kAllowed);
  EXPECT_EQ(verdict_of_call(worker_filter(limits), SYS_clone3), kAllowed);
}
INSTANTIATE_TEST_SUITE_P(Worker, NewNamespace, testing::ValuesIn(sandbox::namespace_flags()), name_of_flag);

class Writing : public testing::TestWithParam<SystemCall> {};

TEST_P(Writing, NeedsItsPermission) {
  if (GetParam().number < 0) GTEST_SKIP() << "this processor has no such call";
  EXPECT_EQ(verdict_of_call(worker_filter(strict()), GetParam().number), (Verdict{EROFS, 0}));
  EXPECT_EQ(verdict_of_call(worker_filter({}), GetParam().number), kAllowed);
}
INSTANTIATE_TEST_SUITE_P(Worker, Writing, testing::ValuesIn(writing_calls()), name_of_call);

TEST(WorkerFilter, OpeningToWriteIsRefused) {
  const auto filter = worker_filter(strict());
  for (const long flags : {O_WRONLY, O_RDWR, O_RDONLY | O_CREAT, O_RDONLY | O_TRUNC, O_WRONLY | O_APPEND | O_CLOEXEC})
    EXPECT_EQ(verdict_of_call(filter, SYS_openat, {AT_FDCWD, 0, flags}), (Verdict{EROFS, 0})) << flags;
  EXPECT_EQ(verdict_of_call(filter, SYS_openat, {AT_FDCWD, 0, O_RDONLY | O_CLOEXEC | O_DIRECTORY}), kAllowed);
  EXPECT_EQ(verdict_of_call(filter, SYS_openat2), (Verdict{ENOSYS, 0}));
  EXPECT_EQ(verdict_of_call(worker_filter({}), SYS_openat, {AT_FDCWD, 0, O_WRONLY}), kAllowed);
  EXPECT_EQ(verdict_of_call(worker_filter({}), SYS_openat2), kAllowed);
#ifdef SYS_open
  EXPECT_EQ(verdict_of_call(filter, SYS_open, {0, O_WRONLY}), (Verdict{EROFS, 0}));
  EXPECT_EQ(verdict_of_call(filter, SYS_open, {0, O_RDONLY}), kAllowed);
#endif
}

TEST(WorkerFilter, TheNetworkNeedsItsPermission) {
  for (const long call : {SYS_socket, SYS_connect, SYS_bind}) {
    EXPECT_EQ(verdict_of_call(worker_filter(strict()), call, {AF_UNIX}), (Verdict{EACCES, 0})) << call;
    EXPECT_EQ(verdict_of_call(worker_filter({}), call, {AF_INET}), kAllowed) << call;
  }
  // bubblewrap opens a local socket and one to the kernel.
  WorkerLimits limits = strict();
  limits.make_sandboxes = true;
  const auto filter = worker_filter(limits);
  for (const long family : {AF_UNIX, AF_NETLINK})
    EXPECT_EQ(verdict_of_call(filter, SYS_socket, {family}), kAllowed) << family;
  for (const long family : {AF_INET, AF_INET6, AF_PACKET, AF_VSOCK, AF_ALG})
    EXPECT_EQ(verdict_of_call(filter, SYS_socket, {family}), (Verdict{EACCES, 0})) << family;
  EXPECT_EQ(verdict_of_call(filter, SYS_bind), kAllowed);
  EXPECT_EQ(verdict_of_call(filter, SYS_connect), (Verdict{EACCES, 0}));
}

TEST(WorkerFilter, ProgramsNeedTheirPermission) {
  for (const long call : {SYS_execve, SYS_execveat}) {
    EXPECT_EQ(verdict_of_call(worker_filter(strict()), call), (Verdict{EPERM, 0}));
    EXPECT_EQ(verdict_of_call(worker_filter({}), call), kAllowed);
  }
}

TEST(WorkerFilter, ComputingIsAllowed) {
  for (const long call : {SYS_read, SYS_write, SYS_mmap, SYS_futex, SYS_clone, SYS_wait4, SYS_pipe2})
    EXPECT_EQ(verdict_of_call(worker_filter(strict()), call), kAllowed) << call;
}

TEST(ForkServerFilter, SignalsToTheForkServerAreRefused) {
  const auto filter = fork_server_filter(300, 200);
  for (const long call : {SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo}) {
    for (const long target : {-1L, 1L, -200L, 300L, -300L})
      EXPECT_EQ(verdict_of_call(filter, call, {target, 9}), (Verdict{EPERM, 0})) << call << " " << target;
    for (const long target : {0L, 2L, 200L, 301L, -301L})
      EXPECT_EQ(verdict_of_call(filter, call, {target, 9}), kAllowed) << call << " " << target;
  }
  EXPECT_NE(fork_server_filter(300, 300).bytes, "") << "a leader of its group";
  EXPECT_EQ(verdict_of_call(filter, SYS_pidfd_send_signal, {5, 15}), (Verdict{EPERM, 0}));
  EXPECT_EQ(verdict_of_call(filter, SYS_rt_tgsigqueueinfo, {300, 300, 15}), (Verdict{EPERM, 0}));
  EXPECT_EQ(verdict_of_call(filter, SYS_rt_tgsigqueueinfo, {301, 301, 15}), (Verdict{kLetThrough, 0}));
}

}  // namespace
}  // namespace mortise::test
