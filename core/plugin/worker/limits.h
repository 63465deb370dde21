// What a worker may do: resource limits, its processors, and a filter of system calls. The fork server sets them on
// itself before any code of the pack runs; workers and their child processes inherit them. Each worker watches the CPU
// time of its calls itself. Threading: the single thread of a starting worker.
#pragma once

#include <sys/types.h>
#include <time.h>

#include <cstdint>
#include <string>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

struct WorkerLimits {
  int64_t memory_bytes = 0;      // address space; 0: no limit
  int64_t file_bytes = 0;        // longest file it may write; 0: no limit
  int64_t open_files = 0;        // 0: no limit
  int64_t cpu_ms = 0;            // CPU time of one call, without the programs that it starts; 0: no limit
  int64_t num_cpus = 0;          // processors that the workers of a reward share; 0: all
  bool network = true;           // sockets to other machines and programs
  bool write_files = true;       // create, write, rename or remove files
  bool start_programs = true;    // execve
  bool make_sandboxes = false;   // namespaces and mounts
  std::string memory_where;      // where memory_bytes was set, for messages: "run.toml:3:21"; may be empty
  std::vector<std::string> env;  // environment variables that the worker gets in addition to the harmless ones
  bool operator==(const WorkerLimits&) const = default;
};

// Sets what the machine can set, and returns which limits hold ("memory 8192 MiB, 256 open files, no network, writes no
// files, starts no programs"), or what is missing and why. An error: a limit that the system refuses to set, or a
// memory limit under which a worker with a pack of `pack_bytes` cannot start.
Result<std::string> apply_limits(const WorkerLimits& limits, uint64_t pack_bytes);

// "plugins.worker_memory_mib = 512 (run.toml:3:21)", for messages about workers that end without a word; "" where their
// memory has no limit.
[[nodiscard]] std::string memory_setting(const WorkerLimits& limits);

// The filter that keeps workers from sending signals to the calling fork server, to its group and to all processes at
// once. The fork server makes it before it forks. Empty if a reward makes sandboxes: inside one, these numbers are other
// processes.
[[nodiscard]] std::string fork_server_guard(const WorkerLimits& limits);

// Puts a worker that was just forked, and what it starts, under that filter. Async-signal-safe.
void protect_fork_server(const std::string& guard);

// Ends the process by SIGXCPU when a call has used its CPU time. A timer and not RLIMIT_CPU: that one counts the whole
// life of a process, and children inherit it.
class CpuWatch {
 public:
  CpuWatch() = default;
  CpuWatch(const CpuWatch&) = delete;
  CpuWatch& operator=(const CpuWatch&) = delete;
  ~CpuWatch();

  // 0: watches nothing.
  Result<> start(int64_t cpu_ms);
  void begin_call();
  void end_call();

 private:
  void set(int64_t cpu_ms);
  timer_t timer_{};
  int64_t cpu_ms_ = 0;
};

}  // namespace mortise
