// RunState: the counters of a run that a resume must find again, and the state of plugins, as checkpoint objects.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "foundation/base/stateful.h"
#include "plugin/host/instance.h"

namespace mortise {

struct RunCounters : Stateful {
  int64_t step = 0;            // steps done
  int64_t num_updates = 0;     // optimizer updates tried, skipped ones included: what the schedule counts
  int64_t num_skipped = 0;     // of them, those whose gradient was not finite
  int64_t weight_version = 0;  // of the policy's weights; what samples are stamped with
  int64_t num_tokens = 0;      // prompt and response tokens so far
  double train_seconds = 0.0;

  [[nodiscard]] std::string state_name() const override { return "run"; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;
};

// The state (mortise.state/1) of plugin instances; those without state save nothing.
class PluginStates : public Stateful {
 public:
  // `instance` must outlive this object.
  void add(std::string name, PluginInstance& instance) { instances_.emplace_back(std::move(name), &instance); }

  [[nodiscard]] std::string state_name() const override { return "plugins"; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  std::vector<std::pair<std::string, PluginInstance*>> instances_;
};

}  // namespace mortise
