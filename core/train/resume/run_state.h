// RunState: the counters of a run that a resume must find again, a validation that it still owes, and the state of
// plugins, as checkpoint objects.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/stateful.h"
#include "foundation/metrics/registry.h"

namespace mortise {

struct RunCounters : Stateful {
  std::string kind = "train";  // the command: a checkpoint of another one is refused
  int64_t step = 0;            // steps done
  int64_t num_updates = 0;     // optimizer updates tried, skipped ones included: what the schedule counts
  int64_t num_skipped = 0;     // how many of them had a gradient that was not finite
  int64_t weight_version = 0;  // version of the policy's weights; samples are stamped with it
  int64_t num_tokens = 0;      // prompt and response tokens so far
  double train_seconds = 0.0;

  [[nodiscard]] std::string state_name() const override { return "run"; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override { return load(reader, kind); }
  // The same of a checkpoint of the command `saved_kind`.
  Result<> load(StateReader& reader, std::string_view saved_kind);
};

// The newest step, if its validation failed after its updates: its numbers without those of the validation. A resume
// begins with that validation and rewrites the step's line, so that the files read as if nothing had failed.
struct OwedValidation : Stateful {
  std::optional<MetricSet> metrics;  // nothing: none is pending

  // Steps whose lines are final: the finished `step`, or those before the step whose line is rewritten.
  [[nodiscard]] int64_t last_final(int64_t step) const { return metrics ? step - 1 : step; }
  [[nodiscard]] std::string state_name() const override { return "trainer.owed_validation"; }
  [[nodiscard]] bool may_be_missing() const override { return true; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;
};

// The state (mortise.state/1) of plugin instances; those without state save nothing. A plugin with state that is not in
// the checkpoint, or state of a plugin that the run does not have, is an error: the settings are the same, so it is
// lost.
class PluginStates : public Stateful {
 public:
  // The run continues with changed settings (--allow-change): missing state starts from its beginning, with a warning.
  bool takes_changes = false;

  // `name` says what the plugin is for and which it is ("advantage:bnpo"). `instance` is a PluginInstance or a
  // RewardFunction and must outlive this object.
  template <class Instance>
  void add(std::string name, Instance& instance) {
    plugins_.push_back({std::move(name), [&instance] { return instance.save_state(); },
                        [&instance](std::string_view bytes) { return instance.load_state(bytes); }});
  }

  [[nodiscard]] std::string state_name() const override { return "plugins"; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;
  // The state of these plugins out of a checkpoint with others too.
  Result<> load_own(StateReader& reader);

 private:
  struct StatefulPlugin {
    std::string name;
    std::function<Result<std::optional<std::string>>()> save;
    std::function<Result<>(std::string_view)> load;
  };
  Result<> check_absent(const StatefulPlugin& plugin) const;
  Result<> check_others(StateReader& reader) const;
  std::vector<StatefulPlugin> plugins_;
};

}  // namespace mortise
