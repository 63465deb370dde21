// The guard around every plugin call: status, exceptions, deadline, misuse of services, and the check of its outputs.
//
// An error names kind, plugin@pack, version, short hash of the pack, slot and step. Cost: two clock reads a call, one
// pass over each output. Threading: as the call.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "foundation/base/result.h"
#include "plugin/host/host_services.h"
#include "plugin/host/kinds/layout.h"

namespace mortise {

// Which call an error is about.
struct CallSite {
  const InstanceIdentity* identity = nullptr;
  std::string_view slot;
  int64_t step = 0;      // 0: outside a run
  int64_t limit_ms = 0;  // plugins.call_timeout; 0: none
  // A call that runs on ends the program. Not in a worker: the trainer ends that one.
  bool may_end_program = true;
};

[[nodiscard]] Error guard_error(const CallSite& site, std::string what, std::string next = "");

// Runs slot(&call) and checks how it ended. `seconds` gets the time it took.
[[nodiscard]] Result<> run_guarded(const CallSite& site, mortise_call& call, int64_t timeout_ms,
                                   const std::function<int32_t(mortise_call*)>& slot, double* seconds);

// Sets the cells that do not count to 0 and demands that all others are finite. The outputs go through memory together,
// and are written only where something changes.
[[nodiscard]] Result<> settle_outputs(const CallSite& site, std::span<const NamedOutput> outputs, const Layout& layout,
                                      const CountedCells& counted);

// "token 5 of row 3 (row 17 of the update)" for flat position t.
[[nodiscard]] std::string token_place(const Layout& layout, size_t t);

}  // namespace mortise
