// What a reward with mortise.state/1 remembers, carried from worker to worker: its state as of the last whole batch.
// Threading: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "plugin/worker/crew.h"

namespace mortise {

class CarriedState {
 public:
  CarriedState() = default;
  // As of the first worker, fresh from create; `label` is the reward's, for messages.
  CarriedState(const ReadyMessage& ready, std::string label);

  // Nothing where the reward keeps none.
  [[nodiscard]] const std::optional<std::string>& bytes() const { return bytes_; }
  // A worker that is about to work gets it, if it has another.
  Result<> bring(Crew& crew, Seat& seat) const;
  // After a batch: the state of the worker that did it.
  Result<> keep(Crew& crew, Seat& seat);
  // Of a checkpoint.
  Result<> replace(Crew& crew, Seat& seat, std::string_view bytes);

 private:
  Result<Frame> ask(Crew& crew, Seat& seat, uint32_t kind, std::string_view body) const;

  std::string label_;
  std::optional<std::string> bytes_;
  int64_t count_ = 0;  // of changes of bytes_: seats remember which they have
};

}  // namespace mortise
