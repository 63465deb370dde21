// RunInputs: digests of what a run reads at every start because its checkpoints do not contain it, so that a resume
// detects an edit: the kind of the device (other code gives other last bits), the reference's weights or the base of an
// adapter, the tokenizer and the chat template, the files, folders and models that parameters of plugins name, and the
// files that plugins tell of by mortise.reads/1.
// data.prompt_source digests the training rows. Mortise cannot detect changes in files that a plugin does not tell of.
//
// The digests are of the weights as loaded, so a copy of the folder in other files is the same. Cost: once at the
// start, SHA-256 on all threads (above 1 GB/s each if the CPU has instructions for it).
// Thread rule: one thread.
#pragma once

#include <string>
#include <vector>

#include "foundation/base/stateful.h"
#include "model/model.h"

namespace mortise {

class PluginRegistry;
struct Critic;
struct DataParts;
struct PolicyParts;
struct RunSettings;
class WeightShards;

class RunInputs : public Stateful {
 public:
  bool takes_changes = false;  // loading: warns about differences instead of refusing them (--allow-change)

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

// The digest of the weights and of the config that says how they are used. If ranks share the weights, it is that of the whole
// model, on all of them, a collective, and takes memory for one matrix or one part at a time. `shards`: of the model with an
// adapter whose base this is.
Result<std::string> digest_of_model(const Model& model, WeightShards* shards);
Result<std::string> digest_of_model(const Model& model);

// If ranks share the layers: the digests of what all ranks have, and of what only ranks with the same part have.
struct PartDigests {
  std::string common, own;
};
// Precondition: model.model_part() is not null.
PartDigests digests_of_part(const Model& model);

// The inputs of a run that learns, made before a checkpoint changes its models. `critic` is null if it has none.
Result<RunInputs> make_inputs(const RunSettings& run, const PluginRegistry& registry, const PolicyParts& policy,
                              const DataParts& data, const Critic* critic);

}  // namespace mortise
