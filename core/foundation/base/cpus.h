// How many processors this process may use: those of its CPU affinity, limited by the CPU time that its control groups
// grant (cgroup v2 `cpu.max`, v1 `cpu.cfs_quota_us`). The machine may have many more, but more threads would only wait
// for each other.
#pragma once

#include <optional>
#include <string>

#include "foundation/base/env.h"

namespace mortise {

// At least 1. Looked up once, at the first call.
[[nodiscard]] int usable_cpus();

// Whether this is a processor of AMD with the x86-64 instructions. Those that others build after AMD's (Hygon) are not.
[[nodiscard]] bool is_amd_cpu();

// Threads of a pool without a number of its own: the number last set, else usable_cpus(). Set it before such pools are
// made.
void set_pool_threads(int num_threads);
[[nodiscard]] int pool_threads();

// A quota of CPU time, in processors (1.5: 150 ms of CPU time per 100 ms), and the folder of the control group that has
// it.
struct CpuQuota {
  double cpus = 0;
  std::string group;
};

// The smallest quota of the process's control group and the groups above it; nothing without a quota. `root` holds
// proc/ and the mounted groups: "/", or a folder that a test made.
[[nodiscard]] std::optional<CpuQuota> cgroup_cpu_quota(Env& env, const Path& root);
// That of this process, looked up once.
[[nodiscard]] const std::optional<CpuQuota>& own_cpu_quota();

// Processes of this run, with this one, that start helpers of their own: so many may use the same processors, and so
// many share one quota.
struct ProcessesHere {
  int on_cpus = 1;
  int in_quota = 1;
};

// {1, 1} until a run of several ranks sets it.
void set_processes_here(ProcessesHere processes);
// What this process may use of both: at least 1.
[[nodiscard]] int own_cpus();
[[nodiscard]] int share_of_cpus(int affinity, std::optional<double> quota, ProcessesHere processes);

// Asks the kernel to run this thread, and the threads and programs that it starts, for short times at once (Linux 6.12
// and later). A thread that has waited then runs again sooner if other programs keep the processors busy: a step next
// to two busy processes takes half as long. The share of the processors stays the same. False where the kernel has no
// such setting, or the thread is not of the ordinary kind (SCHED_OTHER).
bool ask_for_short_slices();

// What follows from both: the quota is rounded up, since part of a processor is still worth a thread.
[[nodiscard]] int cpus_within(int affinity, std::optional<double> quota);

}  // namespace mortise
