// The simulated operating system of the workers' simulation: virtual time, processes and descriptors.
#include "sim_system.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

namespace mortise::test {
namespace {

constexpr int64_t kMaxPolls = 2'000'000;  // polls of one simulation: more is a loop without end

}  // namespace

void SimClock::run_until(int64_t time_ns) {
  while (!events_.empty() && events_.begin()->first <= time_ns) {
    auto first = events_.extract(events_.begin());
    now_ns_ = std::max(now_ns_, first.key());
    first.mapped()();
  }
  now_ns_ = std::max(now_ns_, time_ns);
}

std::optional<int64_t> SimClock::next_event_ns() const {
  return events_.empty() ? std::nullopt : std::optional(events_.begin()->first);
}

void SimClock::count_poll(int timeout_ms) {
  if (++num_polls_ <= kMaxPolls) return;
  throw SimStuck("the pool polls without end: at " + std::to_string(now_ns_ / kSimMs) + " ms it waits for " +
                 std::to_string(timeout_ms) + " ms");
}

int SimSystem::poll(pollfd* entries, nfds_t count, int timeout_ms) {
  clock_.count_poll(timeout_ms);
  if (clock_.chance(0.01)) {
    errno = EINTR;
    return -1;
  }
  const int64_t deadline = timeout_ms < 0 ? INT64_MAX : clock_.now_ns() + timeout_ms * kSimMs;
  while (true) {
    const int ready = ::poll(entries, count, 0);
    if (ready != 0) {
      clock_.advance(1'000);
      return ready;
    }
    const std::optional<int64_t> next = clock_.next_event_ns();
    if (!next && timeout_ms < 0) throw SimStuck("the pool waits for what will never come");
    if (!next || *next > deadline) {
      clock_.run_until(std::max(clock_.now_ns() + 1'000, deadline));
      return 0;
    }
    clock_.run_until(*next);
  }
}

bool SimSystem::refuses(int code) {
  if (refusal <= 0 || clock_.now_ns() >= refusals_end_ns || !clock_.chance(refusal)) return false;
  errno = code;
  return true;
}

int SimSystem::socketpair(int ends[2]) {
  if (refuses(EMFILE)) return -1;
  const int made = real_worker_system().socketpair(ends);
  if (made == 0) last_end_ = ends[1];
  return made;
}

ssize_t SimSystem::sendmsg(int fd, const msghdr* message, int flags) {
  if (clock_.chance(0.01)) {
    errno = EINTR;
    return -1;
  }
  const ssize_t sent = ::sendmsg(fd, message, flags);
  if (sent > 0 && on_send) on_send();
  return sent;
}

ssize_t SimSystem::recvmsg(int fd, msghdr* message, int flags) {
  if (clock_.chance(0.01)) {
    errno = EINTR;
    return -1;
  }
  return ::recvmsg(fd, message, flags);
}

int SimSystem::memfd_create(const char* name, unsigned flags) {
  return refuses(EMFILE) ? -1 : real_worker_system().memfd_create(name, flags);
}
int SimSystem::ftruncate(int fd, off_t size) { return refuses(ENOMEM) ? -1 : real_worker_system().ftruncate(fd, size); }
void* SimSystem::mmap(size_t size, int protection, int fd, off_t offset) {
  return refuses(ENOMEM) ? MAP_FAILED : real_worker_system().mmap(size, protection, fd, offset);
}
int SimSystem::add_seals(int fd, int seals) { return refuses(ENOMEM) ? -1 : real_worker_system().add_seals(fd, seals); }

int SimSystem::spawn(pid_t* pid, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*, char* const*,
                     char* const*) {
  if (refuses(EAGAIN)) return EAGAIN;
  const pid_t made = on_spawn(Fd(::fcntl(last_end_, F_DUPFD_CLOEXEC, 0)));
  if (made < 0) return -made;
  *pid = made;
  return 0;
}

pid_t SimSystem::waitpid(pid_t pid, int* status, int options) {
  if (has_ended(pid)) {
    if (status != nullptr) *status = 0;
    return pid;
  }
  if ((options & WNOHANG) == 0) throw SimStuck("the pool waits for a process that nobody has ended");
  return 0;
}

int SimSystem::kill(pid_t pid, int) {
  on_kill(pid < 0 ? -pid : pid);
  return 0;
}

pid_t SimSystem::fork() { throw std::logic_error("the trainer never forks"); }
int SimSystem::signalfd(const sigset_t*, int) { throw std::logic_error("the trainer's pool takes no signals"); }

int SimPeerSystem::spawn(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*, char* const*,
                         char* const*) {
  throw std::logic_error("simulated processes start none");
}
pid_t SimPeerSystem::waitpid(pid_t, int*, int) { throw std::logic_error("simulated processes have no children"); }
int SimPeerSystem::kill(pid_t, int) { throw std::logic_error("simulated processes send no signals"); }
pid_t SimPeerSystem::fork() { throw std::logic_error("simulated processes do not fork"); }
int SimPeerSystem::signalfd(const sigset_t*, int) { throw std::logic_error("simulated processes take no signals"); }

}  // namespace mortise::test
