// See cpus.h. Formats: proc(5) for /proc/self/cgroup and /proc/self/mountinfo; the kernel's cgroup-v2.rst and
// sched-bwc.rst for the quotas.
#include "foundation/base/cpus.h"

#include <fmt/core.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace mortise {
namespace {

std::vector<std::string> lines_of(Env& env, const Path& path) {
  std::vector<std::string> lines;
  const Result<std::string> text = env.read_file(path);
  if (!text.ok()) return lines;
  std::istringstream in(*text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

bool has_item(const std::string& list, const std::string& item) {
  return fmt::format(",{},", list).find(fmt::format(",{},", item)) != std::string::npos;
}

std::optional<double> ratio(const std::string& quota, const std::string& period) {
  char* end = nullptr;
  const double time = std::strtod(quota.c_str(), &end);  // "max": nothing is read
  if (end == quota.c_str() || time <= 0) return std::nullopt;
  const double whole = std::strtod(period.c_str(), &end);
  return whole > 0 ? std::optional(time / whole) : std::nullopt;
}

// The quota that one group's own files set.
std::optional<double> quota_of_group(Env& env, const Path& group, bool v2) {
  if (v2) {
    const std::vector<std::string> lines = lines_of(env, group / "cpu.max");
    const std::vector<std::string> words = lines.empty() ? lines : words_of(lines[0]);
    return words.size() == 2 ? ratio(words[0], words[1]) : std::nullopt;
  }
  const std::vector<std::string> quota = lines_of(env, group / "cpu.cfs_quota_us");
  const std::vector<std::string> period = lines_of(env, group / "cpu.cfs_period_us");
  return quota.empty() || period.empty() ? std::nullopt : ratio(quota[0], period[0]);
}

// The process's path relative to the mounted part of the hierarchy. In a container the path may be outside it; then the
// mounted group is the process's own.
Path below_mount(const std::string& path, const std::string& mounted) {
  const Path below = Path(path).lexically_relative(mounted);
  return below.empty() || below.begin()->string() == ".." ? Path(".") : below;
}

struct Mount {
  Path point;
  std::string mounted;  // which part of the hierarchy
  bool v2 = false;
};

// "31 23 0:28 /mounted /point options ... - cgroup2 source options"
std::optional<Mount> read_mount(const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  const auto dash = std::find(words.begin(), words.end(), "-");
  if (words.size() < 5 || words.end() - dash < 4) return std::nullopt;
  const bool v2 = dash[1] == "cgroup2";
  if (!v2 && (dash[1] != "cgroup" || !has_item(dash[3], "cpu"))) return std::nullopt;
  return Mount{words[4], words[3], v2};
}

std::atomic<int> g_pool_threads{0}, g_processes_on_cpus{1}, g_processes_in_quota{1};

int look_up_affinity() {
  for (size_t count = CPU_SETSIZE; count <= (size_t{1} << 20); count *= 2) {
    cpu_set_t* const set = CPU_ALLOC(count);
    if (set == nullptr) break;
    const bool known = sched_getaffinity(0, CPU_ALLOC_SIZE(count), set) == 0;
    const int cpus = known ? CPU_COUNT_S(CPU_ALLOC_SIZE(count), set) : 0;
    CPU_FREE(set);
    if (known) return cpus;
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

int affinity_cpus() {
  static const int cpus = std::max(1, look_up_affinity());
  return cpus;
}

std::optional<double> own_quota() {
  const std::optional<CpuQuota>& quota = own_cpu_quota();
  return quota ? std::optional(quota->cpus) : std::nullopt;
}

}  // namespace

std::optional<CpuQuota> cgroup_cpu_quota(Env& env, const Path& root) {
  std::string path_v1, path_v2;
  for (const std::string& line : lines_of(env, root / "proc/self/cgroup")) {  // "4:cpu,cpuacct:/path", "0::/path"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) path_v2 = line.substr(second + 1);
    if (has_item(controllers, "cpu")) path_v1 = line.substr(second + 1);
  }
  std::optional<CpuQuota> least;
  const auto look_at = [&](const Path& group, bool v2) {
    const std::optional<double> quota = quota_of_group(env, group, v2);
    if (quota && (!least || *quota < least->cpus)) least = CpuQuota{*quota, group.string()};
  };
  for (const std::string& line : lines_of(env, root / "proc/self/mountinfo")) {
    const std::optional<Mount> mount = read_mount(line);
    const std::string& path = mount && mount->v2 ? path_v2 : path_v1;
    if (!mount || path.empty()) continue;
    Path group = root / mount->point.relative_path();
    look_at(group, mount->v2);
    for (const Path& part : below_mount(path, mount->mounted)) {
      if (part == ".") continue;
      group /= part;
      look_at(group, mount->v2);
    }
  }
  return least;
}

int cpus_within(int affinity, std::optional<double> quota) {
  const int cpus = std::max(1, affinity);
  if (!quota || *quota >= cpus) return cpus;
  return std::clamp(static_cast<int>(std::ceil(*quota)), 1, cpus);
}

void set_pool_threads(int num_threads) { g_pool_threads = num_threads; }

int pool_threads() {
  const int set = g_pool_threads;
  return set > 0 ? set : usable_cpus();
}

bool is_amd_cpu() {
#ifdef __x86_64__
  static const bool is_it = __builtin_cpu_is("amd") != 0;
  return is_it;
#else
  return false;
#endif
}

int usable_cpus() {
  static const int cpus = cpus_within(affinity_cpus(), own_quota());
  return cpus;
}

const std::optional<CpuQuota>& own_cpu_quota() {
  static const std::optional<CpuQuota> quota = cgroup_cpu_quota(default_env(), "/");
  return quota;
}

void set_processes_here(ProcessesHere processes) {
  g_processes_on_cpus = std::max(1, processes.on_cpus);
  g_processes_in_quota = std::max(1, processes.in_quota);
}

int share_of_cpus(int affinity, std::optional<double> quota, ProcessesHere processes) {
  const int of_processors = affinity / processes.on_cpus;
  return std::max(1, std::min(of_processors, cpus_within(affinity, quota) / (quota ? processes.in_quota : 1)));
}

int own_cpus() { return share_of_cpus(affinity_cpus(), own_quota(), {g_processes_on_cpus, g_processes_in_quota}); }

namespace {

// struct sched_attr of sched_setattr(2), which glibc does not declare before 2.41.
struct ThreadSchedule {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t slice_ns, deadline_ns, period_ns;  // slice_ns is called runtime there
};

constexpr uint64_t kShortSlice_ns = 100'000;  // the shortest that the kernel takes

bool read_schedule(ThreadSchedule& schedule) {
  schedule = {};
  schedule.size = sizeof(schedule);
  return ::syscall(SYS_sched_getattr, 0, &schedule, sizeof(schedule), 0) == 0 && schedule.policy == SCHED_OTHER;
}

}  // namespace

bool ask_for_short_slices() {
  ThreadSchedule schedule;
  if (!read_schedule(schedule)) return false;
  schedule.slice_ns = kShortSlice_ns;
  if (::syscall(SYS_sched_setattr, 0, &schedule, 0) != 0) return false;
  // An older kernel takes the call and keeps nothing.
  return read_schedule(schedule) && schedule.slice_ns == kShortSlice_ns;
}

}  // namespace mortise
