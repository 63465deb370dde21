// Every system call that a program of the reward `code` is refused: what workers are refused, and more.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <csignal>

#include "sandbox.h"
#include "support/filter_verdict.h"

namespace mortise::test {
namespace {

using sandbox::SystemCall;

constexpr Verdict kAllowed{kLetThrough, 0};
constexpr Verdict kRefused{EPERM, 0};

Verdict verdict(long call, std::initializer_list<long> arguments = {}) {
  static const sandbox::FilterProgram filter = system_call_filter();
  return verdict_of_call(filter, call, arguments);
}

std::string name_of_call(const testing::TestParamInfo<SystemCall>& info) { return info.param.name; }

class ProgramCall : public testing::TestWithParam<SystemCall> {};

TEST_P(ProgramCall, IsRefused) {
  if (GetParam().number < 0) GTEST_SKIP() << "this processor has no such call";
  EXPECT_EQ(verdict(GetParam().number), kRefused);
}
INSTANTIATE_TEST_SUITE_P(NeverNeeded, ProgramCall, testing::ValuesIn(sandbox::never_needed_calls()), name_of_call);
INSTANTIATE_TEST_SUITE_P(SandboxMaking, ProgramCall, testing::ValuesIn(sandbox::sandbox_making_calls()), name_of_call);
INSTANTIATE_TEST_SUITE_P(Program, ProgramCall, testing::ValuesIn(program_calls()), name_of_call);

TEST(SandboxFilter, NewProcessesAreRefusedAndThreadsAreNot) {
#ifdef SYS_fork
  EXPECT_EQ(verdict(SYS_fork), kRefused);
  EXPECT_EQ(verdict(SYS_vfork), kRefused);
#endif
  EXPECT_EQ(verdict(SYS_clone3), (Verdict{ENOSYS, 0}));
  EXPECT_EQ(verdict(SYS_clone, {SIGCHLD}), kRefused);
  EXPECT_EQ(verdict(SYS_clone, {CLONE_VM | CLONE_VFORK | SIGCHLD}), kRefused);
  constexpr long kThread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD;
  EXPECT_EQ(verdict(SYS_clone, {kThread}), kAllowed);
  for (const sandbox::NamespaceFlag& flag : sandbox::namespace_flags())
    EXPECT_EQ(verdict(SYS_clone, {kThread | static_cast<long>(flag.bit)}), kRefused) << flag.name;
}

TEST(SandboxFilter, NoSignalIsSigkill) {
  for (const long call : {SYS_kill, SYS_tkill, SYS_rt_sigqueueinfo, SYS_pidfd_send_signal}) {
    EXPECT_EQ(verdict(call, {5, SIGKILL}), kRefused) << call;
    EXPECT_EQ(verdict(call, {5, SIGTERM}), kAllowed) << call;
  }
  for (const long call : {SYS_tgkill, SYS_rt_tgsigqueueinfo}) {
    EXPECT_EQ(verdict(call, {5, 5, SIGKILL}), kRefused) << call;
    EXPECT_EQ(verdict(call, {5, SIGKILL, SIGTERM}), kAllowed) << call;
  }
  EXPECT_EQ(verdict(SYS_prctl, {PR_SET_SECCOMP, 1}), kRefused);
  EXPECT_EQ(verdict(SYS_prctl, {PR_SET_PDEATHSIG, SIGKILL}), kRefused);
  EXPECT_EQ(verdict(SYS_prctl, {PR_GET_DUMPABLE}).code, 0);
  EXPECT_EQ(verdict(SYS_fcntl, {0, F_SETSIG, SIGKILL}), kRefused);
  EXPECT_EQ(verdict(SYS_fcntl, {0, F_GETFL}), kAllowed);
  for (const long resource : {long{RLIMIT_CPU}, long{RLIMIT_RTTIME}}) {
    EXPECT_EQ(verdict(SYS_prlimit64, {0, resource}), kRefused) << resource;
#ifdef SYS_setrlimit
    EXPECT_EQ(verdict(SYS_setrlimit, {resource}), kRefused) << resource;
#endif
  }
  EXPECT_EQ(verdict(SYS_prlimit64, {RLIMIT_CPU, RLIMIT_NOFILE}), kAllowed);
}

TEST(SandboxFilter, TheExitCodeOfAKilledProcessEndsItOtherwise) {
  EXPECT_EQ(verdict(SYS_exit_group, {137}), (Verdict{0, SIGSYS}));
  EXPECT_EQ(verdict(SYS_exit, {137 + 256}), (Verdict{0, SIGSYS}));
  EXPECT_EQ(verdict(SYS_exit_group, {138}), (Verdict{138, 0}));
}

TEST(SandboxFilter, ComputingIsAllowed) {
  for (const long call : {SYS_read, SYS_write, SYS_openat, SYS_mmap, SYS_futex, SYS_execve, SYS_getrandom})
    EXPECT_EQ(verdict(call), kAllowed) << call;
}

}  // namespace
}  // namespace mortise::test
