// ModelState: the numbers of a model that a resume cannot get elsewhere (a critic, a refreshed reference) in
// checkpoints.
#pragma once

#include <string>

#include "learn/optim/tensor_state.h"
#include "model/model.h"

namespace mortise {

class ModelState : public Stateful {
 public:
  // `model` must outlive it.
  ModelState(std::string name, Model& model) : name_(std::move(name)), model_(&model) {}

  [[nodiscard]] std::string state_name() const override { return name_; }
  Result<> save_state(StateWriter& writer) const override {
    for (const NamedParameter& p : model_->parameters()) put_tensor(writer, p.name, p.tensor);
    return {};
  }
  Result<> load_state(StateReader& reader) override {
    for (const NamedParameter& p : model_->parameters()) TRY(get_tensor(reader, p.name, p.tensor));
    return {};
  }

 private:
  std::string name_;
  Model* model_;
};

}  // namespace mortise
