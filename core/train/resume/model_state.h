// ModelState: the exact weights of a model as a checkpoint object, where a resume cannot get them elsewhere: a critic,
// a refreshed reference, an adapter's A and B, weights that the checkpoint's model folder holds rounded. Thread rule:
// one thread. If the model's weights are spread over ranks, each saves and reads its own numbers.
#pragma once

#include <string>

#include "foundation/base/stateful.h"
#include "model/model.h"

namespace mortise {

class ModelState : public Stateful {
 public:
  // The state of the model's trainable parameters. `model` must outlive it.
  ModelState(std::string name, Model& model) : name_(std::move(name)), model_(&model) {}

  static constexpr const char* kPolicy = "actor.model";
  [[nodiscard]] std::string state_name() const override { return name_; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  std::string name_;
  Model* model_;
};

}  // namespace mortise
