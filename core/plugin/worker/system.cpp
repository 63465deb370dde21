// The real system calls behind the interface.
#include "plugin/worker/system.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "foundation/base/env.h"

namespace mortise {
namespace {

class RealSystem final : public WorkerSystem {
 public:
  int64_t monotonic_ns() override { return default_env().monotonic_ns(); }
  void sleep_ms(int64_t ms) override { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
  int poll(pollfd* entries, nfds_t count, int timeout_ms) override { return ::poll(entries, count, timeout_ms); }

  int socketpair(int ends[2]) override { return ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends); }
  ssize_t sendmsg(int fd, const msghdr* message, int flags) override { return ::sendmsg(fd, message, flags); }
  ssize_t recvmsg(int fd, msghdr* message, int flags) override { return ::recvmsg(fd, message, flags); }

  int memfd_create(const char* name, unsigned flags) override { return ::memfd_create(name, flags); }
  int ftruncate(int fd, off_t size) override { return ::ftruncate(fd, size); }
  void* mmap(size_t size, int protection, int fd, off_t offset) override {
    return ::mmap(nullptr, size, protection, MAP_SHARED, fd, offset);
  }
  int add_seals(int fd, int seals) override { return ::fcntl(fd, F_ADD_SEALS, seals); }

  int spawn(pid_t* pid, const char* program, const posix_spawn_file_actions_t* files,
            const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) override {
    return ::posix_spawn(pid, program, files, attributes, arguments, environment);
  }
  pid_t waitpid(pid_t pid, int* status, int options) override { return ::waitpid(pid, status, options); }
  int kill(pid_t pid, int signal) override { return ::kill(pid, signal); }
  pid_t fork() override { return ::fork(); }
  int signalfd(const sigset_t* signals, int flags) override { return ::signalfd(-1, signals, flags); }
};

}  // namespace

WorkerSystem& real_worker_system() {
  static RealSystem system;
  return system;
}

}  // namespace mortise
