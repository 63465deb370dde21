// What the sandbox of the reward `code` says if the process has no descriptors left.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "mortise/cpp/plugin.hpp"
#include "sandbox.h"

namespace mortise::test {
namespace {

constexpr int kFirstMoved = 16;     // the sandbox moves its descriptors to this number and above
constexpr int kNumMemoryFiles = 5;  // which it opens before its pipes

// What one attempt says with a limit of so many descriptors, as an exit code: 0 if it names the missing pipe.
int try_with(rlim_t limit) {
  for (int fd = kFirstMoved; fd < 1024; ++fd) ::close(fd);
  const Sandbox sandbox({});
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = limit;
  ::setrlimit(RLIMIT_NOFILE, &files);
  try {
    (void)sandbox.try_run("/bin/true", {"", "", "", ""}, {1, 1 << 30, 1 << 20, 1 << 20, 8});
  } catch (const Failure& failure) {
    return std::string(failure.what()).find("the sandbox got no pipe") == std::string::npos ? 2 : 0;
  }
  return 3;
}

TEST(SandboxDescriptors, APipeThatCannotBeMadeIsTold) {
  if (::access("/usr/bin/bwrap", X_OK) != 0) GTEST_SKIP() << "bubblewrap is not installed";
  constexpr int kNumEnds = 8;
  for (int ends = 0; ends < kNumEnds; ++ends) {  // so many ends of pipes have room
    const pid_t child = ::fork();
    if (child == 0) ::_exit(try_with(kFirstMoved + kNumMemoryFiles + ends));
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0) << ends;
  }
}

}  // namespace
}  // namespace mortise::test
