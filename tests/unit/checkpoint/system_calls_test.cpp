// Kills a process before each of the system calls by which a save changes the disk (every write, fsync, rename, unlink,
// mkdir, rmdir, and open that creates or empties a file). The old or the new checkpoint must load, and the next save
// must work. ptrace follows the child, so that the test misses no call, whatever code makes it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <optional>

#include "unit/checkpoint/run_state.h"

namespace mortise {
namespace {

using test::fast_env;
using test::resumed_step;
using test::save_place;
using test::save_step;
using ::testing::AnyOf;

constexpr CheckpointWriterOptions kKeepNewest{.keep_last = 1, .sync = true};

bool changes_files(const user_regs_struct& call) {
  switch (call.orig_rax) {
    case SYS_write:
    case SYS_pwrite64:
    case SYS_writev:
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_rename:
    case SYS_renameat:
    case SYS_renameat2:
    case SYS_unlink:
    case SYS_unlinkat:
    case SYS_rmdir:
    case SYS_mkdir:
    case SYS_mkdirat:
    case SYS_ftruncate:
    case SYS_truncate:
    case SYS_link:
    case SYS_linkat:
    case SYS_symlink:
      return true;
    case SYS_openat:
      return (call.rdx & (O_CREAT | O_TRUNC)) != 0;
    case SYS_open:
      return (call.rsi & (O_CREAT | O_TRUNC)) != 0;
    default:
      return false;
  }
}

struct Traced {
  bool was_killed = false;
  int64_t num_calls = 0;  // that change files, the one it was killed before included
  int exit_code = -1;
};

// Runs `body` in a child, which is killed as it enters the `kill_at`-th such call. Nothing where tracing is forbidden.
std::optional<Traced> run_traced(int64_t kill_at, const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(99);
    raise(SIGSTOP);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return std::nullopt;
  if (ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) != 0) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return std::nullopt;
  }
  Traced traced;
  bool enters = true;  // each call stops twice
  while (true) {
    ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    if (waitpid(child, &status, 0) != child) return std::nullopt;
    if (WIFEXITED(status)) {
      traced.exit_code = WEXITSTATUS(status);
      return traced;
    }
    if (WIFSIGNALED(status)) return traced;
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) continue;
    user_regs_struct call{};
    ptrace(PTRACE_GETREGS, child, nullptr, &call);
    if (enters && changes_files(call) && ++traced.num_calls == kill_at) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      traced.was_killed = true;
      return traced;
    }
    enters = !enters;
  }
}

void kill_at_every_call(const CheckpointPlace& second, int64_t at_least) {
  for (int64_t k = 1;; ++k) {
    const test::TempDir dir;
    ASSERT_OK(save_step(fast_env(), dir.path(), 1, kKeepNewest));
    const auto traced = run_traced(k, [&] { return save_place(default_env(), dir.path(), second, kKeepNewest).ok(); });
    if (!traced) GTEST_SKIP() << "no process can be traced here: saves were not killed at their system calls";
    if (!traced->was_killed) {
      ASSERT_EQ(traced->exit_code, 0);
    }
    const int64_t step = resumed_step(default_env(), dir.path());
    ASSERT_THAT(step, AnyOf(1, second.step)) << "killed before call " << k;
    if (!traced->was_killed) {
      ASSERT_EQ(step, second.step);
    }
    ASSERT_OK(save_step(fast_env(), dir.path(), 3, kKeepNewest));
    ASSERT_EQ(resumed_step(default_env(), dir.path()), 3) << "killed before call " << k;
    ASSERT_THAT(*default_env().list_dir(dir.path()), testing::ElementsAre("global_step_3", "latest"))
        << "killed before call " << k;
    if (!traced->was_killed) {
      EXPECT_GE(traced->num_calls, at_least);
      std::printf("killed before each of %d system calls\n", static_cast<int>(traced->num_calls));
      return;
    }
  }
}

TEST(CheckpointSystemCalls, KilledBeforeEachOfThem) { kill_at_every_call({2, {}}, 30); }
TEST(CheckpointSystemCalls, KilledBeforeEachOfThemWhileReplacingTheSameStep) { kill_at_every_call({1, {}}, 30); }
TEST(CheckpointSystemCalls, KilledBeforeEachOfThemInsideAStep) { kill_at_every_call({1, 1}, 20); }

}  // namespace
}  // namespace mortise
