// RunInputs: what a run reads at every start because its checkpoints do not hold it, as digests, so that a resume sees
// that something of it was edited: the reference's weights or the base of an adapter, the tokenizer and the chat
// template, the files of built-in rewards and backends, reward models among them, and what a Python reward imports from
// its own folder. Training rows are data.prompt_source's own; what else a plugin reads, only it knows.
//
// Weights are digested as they were loaded, so that a copy of the folder in other files is the same. Cost: once at the
// start, SHA-256 on all threads (above 1 GB/s for each where the CPU has instructions for it).
// Thread rule: one thread.
#pragma once

#include <string>
#include <vector>

#include "foundation/base/stateful.h"

namespace mortise {

struct RunParts;

class RunInputs : public Stateful {
 public:
  bool takes_changes = false;  // loading: what differs is told, not refused (--allow-change)

  // `name` is stable; `what` is for people: "model.path: the weights of the reference".
  void add(std::string name, std::string what, std::string digest);

  [[nodiscard]] std::string state_name() const override { return "inputs"; }
  [[nodiscard]] bool may_be_missing() const override { return true; }
  Result<> save_state(StateWriter& writer) const override;
  // An input that was not there then, or is not now, is a changed setting, which is not looked at here.
  Result<> load_state(StateReader& reader) override;

 private:
  struct Input {
    std::string name, what, digest;
  };
  std::vector<Input> inputs_;
};

// Those of a run that learns, whose parts are made and whose checkpoint, if any, is not loaded yet.
Result<> add_inputs(RunParts& parts);

}  // namespace mortise
