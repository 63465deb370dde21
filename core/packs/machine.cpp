// Finds out this machine's processor level, and chooses the best build of a pack for it.
#include "packs/machine.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <tuple>
#include <vector>

#include "foundation/base/text.h"

namespace mortise {
namespace {

int this_cpu_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v2 =
      __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("ssse3");
  const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? 4 : v3 ? 3 : v2 ? 2 : 1;
#else
  return 1;
#endif
}

int driver_cuda() {
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return 0;
  using GetVersion = int (*)(int*);
  const auto get_version = reinterpret_cast<GetVersion>(::dlsym(driver, "cuDriverGetVersion"));
  int version = 0;  // 12080 for CUDA 12.8
  const bool known = get_version != nullptr && get_version(&version) == 0;
  (void)::dlclose(driver);
  return known ? version / 1000 : 0;
}

bool driver_runs(const PackBuild& build, const Machine& machine) {
  return !build.cuda.empty() && std::atoi(build.cuda.c_str()) <= machine.cuda;  // atoi reads the major
}

// A build that names its architecture alone runs on every processor of it.
int level_of(const PackBuild& build) { return build.cpu == build.arch ? 1 : cpu_level_of(build.cpu); }

bool fits(const PackBuild& build, const Machine& machine) {
  return build.os == machine.os && build.arch == machine.arch && level_of(build) <= machine.cpu_level &&
         (build.torch.empty() || build.torch == machine.torch);
}

}  // namespace

Machine this_machine(std::string_view host_torch) {
  Machine machine;
  utsname name{};
  if (::uname(&name) == 0) machine.arch = name.machine;
  machine.cpu_level = this_cpu_level();
  machine.torch = host_torch;
  machine.cuda = driver_cuda();
  return machine;
}

int cpu_level_of(std::string_view cpu) {
  constexpr std::string_view kLevels[] = {"x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};
  const auto* found = std::find(std::begin(kLevels), std::end(kLevels), cpu);
  return found == std::end(kLevels) ? kUnknownCpuLevel : static_cast<int>(found - std::begin(kLevels)) + 1;
}

Result<const PackBuild*> choose_build(const PackDescription& pack, const Machine& machine, std::string_view where) {
  const PackBuild* best = nullptr;
  const auto rank = [&](const PackBuild& build) {
    const bool on_device = driver_runs(build, machine);
    return std::tuple(build.cuda.empty() || on_device, level_of(build), on_device, !build.torch.empty());
  };
  for (const PackBuild& build : pack.builds) {
    if (fits(build, machine) && (best == nullptr || rank(build) > rank(*best))) best = &build;
  }
  if (best != nullptr) return best;
  std::vector<std::string> have;
  for (const PackBuild& build : pack.builds) have.push_back(build.platform());
  const std::string here = fmt::format("{} {}, level {}{}", machine.os, machine.arch, machine.cpu_level,
                                       machine.torch.empty() ? "" : ", torch " + machine.torch);
  return Error{ErrorKind::kPlugin, fmt::format("no build of {} runs on this machine ({})", pack.label(), here),
               std::string(where), "ask the publisher for one; there are: " + join(have, "; ")};
}

}  // namespace mortise
