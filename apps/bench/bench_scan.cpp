// A search of 100 packs, which every command that names a plugin begins with: the files are read and checked, and none of
// their code runs. It is promised to take less than 50 ms.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include "foundation/base/clock.h"
#include "foundation/base/env.h"
#include "plugin/host/registry.h"

namespace mortise {
namespace {

constexpr int kNumPacks = 100, kRounds = 31;

// Copies with bytes behind the last section: other files, other hashes, the same pack.
Result<> fill(const Path& folder) {
  const Path program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  TRY(default_env().create_dirs(folder));
  for (int i = 0; i < kNumPacks; ++i) {
    const Path file = folder / ("p" + std::to_string(i) + ".so");
    std::filesystem::copy_file(program / "../lib/mortise/bench_packs/bench.faults.so", file);
    std::ofstream(file, std::ios::app) << i;
  }
  return {};
}

Result<> run(const Path& folder) {
  TRY(fill(folder));
  RegistryOptions options;
  options.use_environment = options.use_user_packs = false;
  options.builtin_dir = "/nonexistent/packs";
  options.paths = {folder};
  std::vector<double> times_ms;
  for (int round = 0; round < kRounds; ++round) {
    const Stopwatch watch;
    const PluginRegistry registry = TRY(PluginRegistry::open(options));
    times_ms.push_back(1e3 * watch.elapsed_s());
    const size_t found = registry.candidates().size() + registry.rejected().size();
    if (found != kNumPacks)
      return Error{ErrorKind::kInternal, "the search found " + std::to_string(found) + " packs", folder, ""};
  }
  std::sort(times_ms.begin(), times_ms.end());
  std::printf("a search of %d packs takes %.1f ms (median of %d; fastest %.1f ms; promised: 50 ms)\n", kNumPacks,
              times_ms[times_ms.size() / 2], kRounds, times_ms.front());
  return {};
}

}  // namespace
}  // namespace mortise

int main() {
  mortise::Env& env = mortise::default_env();
  const mortise::Path folder = std::filesystem::temp_directory_path() / mortise::unique_name(env, "mortise_scan_");
  const auto done = mortise::run(folder);
  (void)mortise::remove_tree(env, folder);
  if (done.ok()) return 0;
  std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
  return static_cast<int>(done.error().kind);
}
