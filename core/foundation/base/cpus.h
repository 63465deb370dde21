// How many processors this process may use: those of its CPU affinity, limited by the CPU time that its control groups
// grant (cgroup v2 `cpu.max`, v1 `cpu.cfs_quota_us`). The machine may have many more, but more threads would only wait
// for each other.
#pragma once

#include <optional>

#include "foundation/base/env.h"

namespace mortise {

// At least 1. Looked up once, at the first call.
[[nodiscard]] int usable_cpus();

// Threads of a pool without a number of its own: the number last set, else usable_cpus(). Set it before such pools are
// made.
void set_pool_threads(int num_threads);
[[nodiscard]] int pool_threads();

// Processes of this run that share these processors, and start helpers of their own: 1 until a run of several ranks sets it.
void set_processes_here(int count);
// The share of each of them, at least 1.
[[nodiscard]] int own_cpus();

// The smallest quota of the process's control group and the groups above it, in processors (1.5: 150 ms of CPU time per
// 100 ms); nothing without a quota. `root` holds proc/ and the mounted groups: "/", or a folder that a test made.
[[nodiscard]] std::optional<double> cgroup_cpu_quota(Env& env, const Path& root);

// Asks the kernel to run this thread, and the threads and programs that it starts, for short times at once (Linux 6.12 and
// later). A thread that has waited then runs again sooner if other programs keep the processors busy: a step next to two
// busy processes takes half as long. The share of the processors stays the same. False where the kernel has no such
// setting, or the thread is not of the ordinary kind (SCHED_OTHER).
bool ask_for_short_slices();

// What follows from both: the quota is rounded up, since part of a processor is still worth a thread.
[[nodiscard]] int cpus_within(int affinity, std::optional<double> quota);

}  // namespace mortise
