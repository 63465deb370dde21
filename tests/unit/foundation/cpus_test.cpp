// The processors that a process may use, by made-up /proc and control-group folders.
#include "foundation/base/cpus.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "foundation/base/thread_pool.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

constexpr const char* kV2Mount = "25 30 0:23 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(Cpus, TheQuotaIsRoundedUpAndNeverWidensTheAffinity) {
  EXPECT_EQ(cpus_within(8, std::nullopt), 8);
  EXPECT_EQ(cpus_within(8, 2.0), 2);
  EXPECT_EQ(cpus_within(8, 1.5), 2);
  EXPECT_EQ(cpus_within(8, 0.1), 1);
  EXPECT_EQ(cpus_within(2, 64.0), 2);
  EXPECT_EQ(cpus_within(0, std::nullopt), 1);
}

TEST(Cpus, TheSmallestQuotaOfTheV2GroupAndItsParents) {
  const test::TempDir dir;
  dir.write("proc/self/cgroup", "0::/user.slice/job.scope\n");
  dir.write("proc/self/mountinfo", kV2Mount);
  EXPECT_EQ(cgroup_cpu_quota(default_env(), dir.path()), std::nullopt);
  dir.write("sys/fs/cgroup/user.slice/job.scope/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(default_env(), dir.path()), std::nullopt);
  dir.write("sys/fs/cgroup/user.slice/cpu.max", "250000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(default_env(), dir.path()), 2.5);
  dir.write("sys/fs/cgroup/user.slice/job.scope/cpu.max", "50000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(default_env(), dir.path()), 0.5);
}

// The namespace hides where the container's group hangs: its own files are at the mount point.
TEST(Cpus, InAContainerTheMountedGroupIsItsOwn) {
  const test::TempDir dir;
  dir.write("proc/self/cgroup", "0::/../../other\n");
  dir.write("proc/self/mountinfo", kV2Mount);
  dir.write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(default_env(), dir.path()), 1.5);
}

TEST(Cpus, TheV1QuotaBelowAMountedPart) {
  const test::TempDir dir;
  dir.write("proc/self/cgroup", "9:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc/inner\n0::/elsewhere\n");
  dir.write("proc/self/mountinfo",
            "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
            "33 31 0:30 /docker/abc /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n");
  dir.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  dir.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  dir.write("sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "1\n");  // not this hierarchy's to say
  dir.write("sys/fs/cgroup/cpuset/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(default_env(), dir.path()), std::nullopt);
  dir.write("sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us", "300000\n");
  dir.write("sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(default_env(), dir.path()), 3.0);
}

TEST(Cpus, WithoutProcOrWithDamagedFilesThereIsNoQuota) {
  const test::TempDir dir;
  EXPECT_EQ(cgroup_cpu_quota(default_env(), dir.path()), std::nullopt);
  dir.write("proc/self/cgroup", "::\n4\n0::/a\n");
  dir.write("proc/self/mountinfo", std::string("- -\n25 30 cgroup2 -\n") + kV2Mount);
  for (const char* text : {"", "max", "x y", "100000 0", "-5 100000", "100000"}) {
    dir.write("sys/fs/cgroup/a/cpu.max", text);
    EXPECT_EQ(cgroup_cpu_quota(default_env(), dir.path()), std::nullopt) << text;
  }
}

TEST(Cpus, PoolsFollowWhatWasSet) {
  set_pool_threads(3);
  EXPECT_EQ(pool_threads(), 3);
  EXPECT_EQ(ThreadPool(0).num_threads(), 3);
  EXPECT_EQ(ThreadPool(1).num_threads(), 1);
  set_pool_threads(0);
  EXPECT_EQ(ThreadPool(0).num_threads(), usable_cpus());
}

TEST(Cpus, NoMoreThanTheAffinityOfThisProcess) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_GE(usable_cpus(), 1);
  EXPECT_LE(usable_cpus(), CPU_COUNT(&set));
}

TEST(Cpus, AreSharedAmongTheProcessesOfARun) {
  EXPECT_EQ(own_cpus(), usable_cpus());
  set_processes_here(2);
  EXPECT_EQ(own_cpus(), std::max(1, usable_cpus() / 2));
  set_processes_here(usable_cpus() + 1);
  EXPECT_EQ(own_cpus(), 1);
  set_processes_here(1);
}

// The time that the kernel lets a thread run at once, in ns, as sched_getattr(2) tells it; 0 on kernels that have none.
uint64_t slice_ns() {
  struct {
    uint32_t size, policy;
    uint64_t flags, nice_and_priority, runtime_ns, deadline_ns, period_ns;
  } schedule{};
  return ::syscall(SYS_sched_getattr, 0, &schedule, sizeof(schedule), 0) == 0 ? schedule.runtime_ns : 0;
}

TEST(Cpus, ThreadsThatAreStartedLaterKeepTheShortSlice) {
  std::thread([] {
    const uint64_t before = slice_ns();
    const int priority = ::getpriority(PRIO_PROCESS, 0);
    const bool granted = ask_for_short_slices();
    std::thread([&] { EXPECT_EQ(slice_ns(), granted ? 100'000 : before); }).join();
    EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
    EXPECT_EQ(::getpriority(PRIO_PROCESS, 0), priority);
  }).join();
}

}  // namespace
}  // namespace mortise
