// Which build of a pack belongs on this machine. Threading: pure functions, but for this_machine().
#pragma once

#include <string>
#include <string_view>

#include "foundation/base/result.h"
#include "packs/description.h"

namespace mortise {

struct Machine {
  std::string os = "linux", arch;
  int cpu_level = 1;  // level of x86-64: 1 to 4 (the psABI's levels)
  std::string torch;  // version that this program has; "": none
  int cuda = 0;       // newest major version of CUDA that the NVIDIA driver runs; 0: no driver
};
[[nodiscard]] Machine this_machine(std::string_view host_torch);

// 1 to 4 for "x86-64" to "x86-64-v4". No machine has the level of any other text.
inline constexpr int kUnknownCpuLevel = 99;
[[nodiscard]] int cpu_level_of(std::string_view cpu);

// The build with the highest level that the machine has; among those the one for CUDA, then the one for its libtorch.
// A build for a CUDA that the driver does not run comes last: its plugins then run on the CPU (rule R46). Without any: an
// error that lists what the pack has.
Result<const PackBuild*> choose_build(const PackDescription& pack, const Machine& machine, std::string_view where);

}  // namespace mortise
