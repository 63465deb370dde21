// The state of a plugin with mortise.state/1, carried from worker to worker: its state after the last whole batch of a
// reward, or after the last call of a loss or estimator.
// Threading: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "plugin/worker/supervisor.h"

namespace mortise {

class CarriedState {
 public:
  CarriedState() = default;
  // As of the first worker, fresh from create; `label` is the plugin's, for messages.
  CarriedState(const ReadyMessage& ready, std::string label);

  // Nothing if the plugin keeps none.
  [[nodiscard]] const std::optional<std::string>& bytes() const { return bytes_; }
  // A worker that is about to work gets it, if it has another.
  Result<> bring(Supervisor& supervisor, Slot& slot) const;
  // After a batch: the state of the worker that did it.
  Result<> keep(Supervisor& supervisor, Slot& slot);
  // The state that a worker told after a call.
  void take(Slot& slot, std::string bytes);
  // The state from a checkpoint.
  Result<> replace(Supervisor& supervisor, Slot& slot, std::string_view bytes);

 private:
  Result<Frame> ask(Supervisor& supervisor, Slot& slot, uint32_t kind, std::string_view body) const;

  std::string label_;
  std::optional<std::string> bytes_;
  int64_t count_ = 0;  // changes of bytes_: slots remember which they have
};

}  // namespace mortise
