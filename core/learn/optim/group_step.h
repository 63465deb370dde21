// GroupStep: steps of rules that need whole parameters (Adafactor, Muon, 8-bit AdamW) if ranks share the layers of a model.
//
// The parameters are dealt to the ranks of a group. A rank gets the others' numbers of its parameter and of the gradient,
// steps the whole parameter, and gives each rank its part of the new weights. It has the state of the whole parameter, so
// the numbers and the state are those of one rank. Every rank steps what is not split.
// Cost of an update: a rank sends its part of the gradient and of the weights, and as many numbers of new weights. Next to
// its parts it has two whole parameters at a time. Thread rule: one thread; step() is a collective of the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "foundation/base/result.h"
#include "learn/optim/update_rule.h"
#include "model/weights/model_part.h"

namespace mortise {

class GroupStep {
 public:
  // `parameters`: this rank's parts of them, from `part`, which is borrowed.
  GroupStep(const ModelPart& part, std::span<const OptimizedParameter> parameters);

  // Deals those of the parameters that this rank and the others of its group step. By their places; all ranks give the same.
  void deal(std::span<const size_t> parameters);

  // The whole parameter, without memory of its own.
  [[nodiscard]] const OptimizedParameter& whole(size_t parameter) const { return wholes_[parameter]; }
  [[nodiscard]] bool is_split(size_t parameter) const { return splits_[parameter]->is_split(); }
  // Does this rank save the state?
  [[nodiscard]] bool is_owner(size_t parameter) const { return owners_[parameter] == part_->ranks()->rank(); }
  // Does it have the state?
  [[nodiscard]] bool has_state(size_t parameter) const { return !is_split(parameter) || is_owner(parameter); }

  // `parts`: this rank's, of the parameters at `places`. `step` steps whole parameters. `done` gets this rank's weights of a
  // parameter that another rank or this one has stepped.
  using StepWhole = std::function<void(std::span<StepPart> parts)>;
  using WeightsDone = std::function<void(const at::Tensor& weights)>;
  Result<> step(std::span<StepPart> parts, std::span<const size_t> places, const StepWhole& step,
                const WeightsDone& done) const;

 private:
  // What a rank of the group steps in a round; a rank may have nothing left.
  struct Turn {
    size_t place = 0;  // the parameter's
    StepPart* part = nullptr;
  };
  using Round = std::vector<std::optional<Turn>>;  // by rank
  Result<> step_round(const Round& round, const StepWhole& step) const;
  [[nodiscard]] at::Tensor to_owners(const Round& round, at::Tensor StepPart::*numbers) const;
  void from_owners(const Round& round, const at::Tensor& whole) const;
  // The numbers of a rank that has so many of the rows or columns.
  [[nodiscard]] int64_t numbers_of(size_t place, int64_t size) const;

  const ModelPart* part_;
  std::vector<OptimizedParameter> wholes_;
  std::vector<const TensorSplit*> splits_;
  std::vector<int> owners_;  // ranks of the group
};

}  // namespace mortise
