// The system calls of the worker pool behind one interface, so that a test can make any of them fail, and a simulation
// can use its own clock and processes.
//
// Each function is the call of its name: same arguments, same result, errno on failure. There is no wall clock here:
// deadlines are times of monotonic_ns(), so a step of the machine's clock does not affect them. Thread rule: an
// implementation may be called from any thread.
#pragma once

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace mortise {

class WorkerSystem {
 public:
  virtual ~WorkerSystem() = default;

  virtual int64_t monotonic_ns() = 0;
  virtual void sleep_ms(int64_t ms) = 0;
  virtual int poll(pollfd* entries, nfds_t count, int timeout_ms) = 0;

  virtual int socketpair(int ends[2]) = 0;  // Unix stream sockets, closed on exec
  virtual ssize_t sendmsg(int fd, const msghdr* message, int flags) = 0;
  virtual ssize_t recvmsg(int fd, msghdr* message, int flags) = 0;

  virtual int memfd_create(const char* name, unsigned flags) = 0;
  virtual int ftruncate(int fd, off_t size) = 0;
  virtual void* mmap(size_t size, int protection, int fd, off_t offset) = 0;  // shared, at any address
  virtual int add_seals(int fd, int seals) = 0;

  virtual int spawn(pid_t* pid, const char* program, const posix_spawn_file_actions_t* files,
                    const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) = 0;
  virtual pid_t waitpid(pid_t pid, int* status, int options) = 0;
  virtual int kill(pid_t pid, int signal) = 0;
  virtual pid_t fork() = 0;
  virtual int signalfd(const sigset_t* signals, int flags) = 0;
};

// The real one. Lives as long as the program.
WorkerSystem& real_worker_system();

}  // namespace mortise
