// RemoteInstance: the plugin instance that lives in a worker process, seen from the engine. worker/isolated.h makes them.
//
// Its pack is never loaded here, so none of its code runs in this process. Threading: one call at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "foundation/base/result.h"
#include "plugin/host/instance.h"
#include "plugin/host/registry.h"

namespace mortise {

struct StepCall;          // kinds/step_call.h
struct InstanceIdentity;  // host_services.h

class RemoteInstance {
 public:
  virtual ~RemoteInstance() = default;
  // The slot `compute`. Fills the outputs of `call`; nothing has looked at their values yet.
  virtual Result<CallReport> compute(const StepCall& call, const CallOptions& options) = 0;
  // mortise.state/1: nothing when the plugin keeps no state.
  virtual Result<std::optional<std::string>> save_state() = 0;
  virtual Result<> load_state(std::string_view bytes) = 0;
};

}  // namespace mortise
