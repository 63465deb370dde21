// A WorkerSystem that passes every call on to the real one: a test derives from it and overrides what it watches or
// breaks. Thread rule: as the real one.
#pragma once

#include "plugin/worker/system.h"

namespace mortise::test {

class ForwardingSystem : public WorkerSystem {
 public:
  int64_t monotonic_ns() override { return real_.monotonic_ns(); }
  void sleep_ms(int64_t ms) override { real_.sleep_ms(ms); }
  int poll(pollfd* entries, nfds_t count, int timeout_ms) override { return real_.poll(entries, count, timeout_ms); }
  int socketpair(int ends[2]) override { return real_.socketpair(ends); }
  ssize_t sendmsg(int fd, const msghdr* message, int flags) override { return real_.sendmsg(fd, message, flags); }
  ssize_t recvmsg(int fd, msghdr* message, int flags) override { return real_.recvmsg(fd, message, flags); }
  int memfd_create(const char* name, unsigned flags) override { return real_.memfd_create(name, flags); }
  int ftruncate(int fd, off_t size) override { return real_.ftruncate(fd, size); }
  void* mmap(size_t size, int protection, int fd, off_t offset) override {
    return real_.mmap(size, protection, fd, offset);
  }
  int add_seals(int fd, int seals) override { return real_.add_seals(fd, seals); }
  int spawn(pid_t* pid, const char* program, const posix_spawn_file_actions_t* files,
            const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) override {
    return real_.spawn(pid, program, files, attributes, arguments, environment);
  }
  pid_t waitpid(pid_t pid, int* status, int options) override { return real_.waitpid(pid, status, options); }
  int kill(pid_t pid, int signal) override { return real_.kill(pid, signal); }
  pid_t fork() override { return real_.fork(); }
  int signalfd(const sigset_t* signals, int flags) override { return real_.signalfd(signals, flags); }

 protected:
  WorkerSystem& real_ = real_worker_system();
};

}  // namespace mortise::test
