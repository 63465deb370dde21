// Locks of folders, and file systems without locks.
#include "foundation/base/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "foundation/base/log.h"
#include "support/temp_dir.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// From now on the kernel answers flock of this process as a file system without locks does.
bool take_locks_away() {
  sock_filter rules[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_flock, 0, 1),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOLCK),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog program{4, rules};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(FolderLock, OneAtATime) {
  const TempDir dir;
  ASSERT_OK_AND_ASSIGN(const FolderLock first, FolderLock::take(dir.path()));
  const auto second = FolderLock::take(dir.path());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().what, HasSubstr("another run"));
}

TEST(FolderLock, AFileSystemWithoutLocksIsToldLoudly) {
  const TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    if (!log_init({.console_level = LogLevel::kOff, .file = dir / "log.txt", .force_plain = true}).ok()) ::_exit(2);
    if (!take_locks_away()) ::_exit(77);
    const bool taken = FolderLock::take(dir.path()).ok() && FolderLock::take_file(dir / "file").ok();
    log_flush();
    ::_exit(taken ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no filters of system calls here";
  ASSERT_EQ(status, 0);
  const std::string log = dir.read("log.txt");
  EXPECT_THAT(log, HasSubstr(dir.path().string() + ": the file system cannot lock it (No locks available)"));
  EXPECT_THAT(log, HasSubstr((dir / "file").string() + ": the file system cannot lock it"));
}

}  // namespace
}  // namespace mortise::test
