// SimSystem: the pool's system calls with virtual time and without processes.
//
// Sockets and shared memory are real, and only one thread uses them. Time passes when the pool waits: poll() and
// sleep_ms() run the events that are due, in an order that is a function of the seed. spawn() hands the other end of
// the last socket pair to on_spawn. Each call may be made to fail with an errno.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>

#include "plugin/worker/fd.h"
#include "support/forwarding_system.h"

namespace mortise::test {

inline constexpr int64_t kSimMs = 1'000'000;

// The pool waits for something that will never come, or turns without end.
struct SimStuck : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Virtual time, and what happens in it: one for all pools of a simulation.
class SimClock {
 public:
  explicit SimClock(uint64_t seed) : random_(seed) {}

  [[nodiscard]] int64_t now_ns() const { return now_ns_; }
  void advance(int64_t ns) { now_ns_ += ns; }
  void after(int64_t delay_ns, std::function<void()> event) { events_.emplace(now_ns_ + delay_ns, std::move(event)); }
  int64_t uniform(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool chance(double probability) { return std::uniform_real_distribution<double>()(random_) < probability; }
  // Runs the events that are due until then. The pools sleep meanwhile, so what they wait for may be long overdue.
  void run_until(int64_t time_ns);
  [[nodiscard]] std::optional<int64_t> next_event_ns() const;
  void count_poll(int timeout_ms);

 private:
  std::mt19937_64 random_;
  int64_t now_ns_ = 1'000'000'000;
  std::multimap<int64_t, std::function<void()>> events_;
  int64_t num_polls_ = 0;
};

class SimSystem final : public WorkerSystem {
 public:
  explicit SimSystem(SimClock& clock) : clock_(clock) {}

  // --- of the simulation ---
  std::function<pid_t(Fd socket)> on_spawn;  // a number, or -errno
  std::function<void(pid_t)> on_kill;        // also of a process that is given up
  std::function<bool(pid_t)> has_ended;      // for waitpid
  std::function<void()> on_send;             // the pool has sent something
  double refusal = 0;                        // chance that a call for a resource fails
  int64_t refusals_end_ns = INT64_MAX;       // the machine is short of everything until then

  // --- of the pool ---
  int64_t monotonic_ns() override {
    clock_.advance(100);
    return clock_.now_ns();
  }
  void sleep_ms(int64_t ms) override { clock_.run_until(clock_.now_ns() + ms * kSimMs); }
  int poll(pollfd* entries, nfds_t count, int timeout_ms) override;
  int socketpair(int ends[2]) override;
  ssize_t sendmsg(int fd, const msghdr* message, int flags) override;
  ssize_t recvmsg(int fd, msghdr* message, int flags) override;
  int memfd_create(const char* name, unsigned flags) override;
  int ftruncate(int fd, off_t size) override;
  void* mmap(size_t size, int protection, int fd, off_t offset) override;
  int add_seals(int fd, int seals) override;
  int spawn(pid_t* pid, const char* program, const posix_spawn_file_actions_t* files,
            const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) override;
  pid_t waitpid(pid_t pid, int* status, int options) override;
  int kill(pid_t pid, int signal) override;
  pid_t fork() override;  // never called: the fork server is simulated
  int signalfd(const sigset_t* signals, int flags) override;

 private:
  bool refuses(int code);

  SimClock& clock_;
  int last_end_ = -1;  // an end of the last socket pair, which a spawned process gets
};

// What simulated processes use: the same descriptors and the same clock, and no wait.
class SimPeerSystem final : public ForwardingSystem {
 public:
  explicit SimPeerSystem(SimClock& clock) : clock_(clock) {}
  int64_t monotonic_ns() override { return clock_.now_ns(); }
  void sleep_ms(int64_t) override {}
  int poll(pollfd* entries, nfds_t count, int) override { return real_.poll(entries, count, 0); }
  int spawn(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*, char* const*,
            char* const*) override;
  pid_t waitpid(pid_t, int*, int) override;
  int kill(pid_t, int) override;
  pid_t fork() override;
  int signalfd(const sigset_t*, int) override;

 private:
  SimClock& clock_;
};

}  // namespace mortise::test
