// FaultySystem: the real system calls of the pool, of which chosen ones fail.
//
//   FaultySystem system;
//   system.fail({"memfd_create", 2, EMFILE});      the second call of that name fails
//   system.fail({"fork", 1, EAGAIN, 20});          the first twenty
// A failing "recvmsg" takes its bytes and loses the descriptors that came with them, as the kernel does when no number
// is free. Counts are of this process; a forked one continues from those of its parent.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "support/forwarding_system.h"

namespace mortise::test {

struct Fault {
  std::string call;
  int64_t first = 1;  // counted from 1
  int code = EIO;
  int64_t times = 1;
};

class FaultySystem final : public ForwardingSystem {
 public:
  void fail(const Fault& fault) { faults_.push_back(fault); }
  [[nodiscard]] int64_t count(const std::string& call) const {
    const auto it = counts_.find(call);
    return it == counts_.end() ? 0 : it->second;
  }
  [[nodiscard]] int64_t num_failed() const { return num_failed_; }

  int poll(pollfd* entries, nfds_t count, int timeout_ms) override {
    return fails("poll") ? -1 : real_.poll(entries, count, timeout_ms);
  }
  int socketpair(int ends[2]) override { return fails("socketpair") ? -1 : real_.socketpair(ends); }
  ssize_t sendmsg(int fd, const msghdr* message, int flags) override {
    return fails("sendmsg") ? -1 : real_.sendmsg(fd, message, flags);
  }
  ssize_t recvmsg(int fd, msghdr* message, int flags) override {
    const ssize_t n = real_.recvmsg(fd, message, flags);
    if (n <= 0 || message->msg_controllen == 0 || !fails("recvmsg")) return n;
    for (cmsghdr* h = CMSG_FIRSTHDR(message); h != nullptr; h = CMSG_NXTHDR(message, h)) {
      std::vector<int> numbers((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      std::memcpy(numbers.data(), CMSG_DATA(h), numbers.size() * sizeof(int));
      for (const int number : numbers) ::close(number);
    }
    message->msg_controllen = 0;
    message->msg_flags |= MSG_CTRUNC;
    return n;
  }
  int memfd_create(const char* name, unsigned flags) override {
    return fails("memfd_create") ? -1 : real_.memfd_create(name, flags);
  }
  int ftruncate(int fd, off_t size) override { return fails("ftruncate") ? -1 : real_.ftruncate(fd, size); }
  void* mmap(size_t size, int protection, int fd, off_t offset) override {
    return fails("mmap") ? MAP_FAILED : real_.mmap(size, protection, fd, offset);
  }
  int add_seals(int fd, int seals) override { return fails("add_seals") ? -1 : real_.add_seals(fd, seals); }
  int spawn(pid_t* pid, const char* program, const posix_spawn_file_actions_t* files,
            const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) override {
    return fails("spawn") ? errno : real_.spawn(pid, program, files, attributes, arguments, environment);
  }
  pid_t fork() override { return fails("fork") ? -1 : real_.fork(); }
  int signalfd(const sigset_t* signals, int flags) override {
    return fails("signalfd") ? -1 : real_.signalfd(signals, flags);
  }

 private:
  bool fails(const char* call) {
    const int64_t number = ++counts_[call];
    for (const Fault& fault : faults_) {
      if (fault.call != call || number < fault.first || number - fault.first >= fault.times) continue;
      ++num_failed_;
      errno = fault.code;
      return true;
    }
    return false;
  }

  std::vector<Fault> faults_;
  std::map<std::string, int64_t> counts_;
  int64_t num_failed_ = 0;
};

}  // namespace mortise::test
