// UpdateRule: the mathematics of an optimizer, for one rank's part of the parameters. Optimizer (optimizer.h) owns the
// state, shares it over ranks, and saves it.
//
// A rule declares the tensors of state that a parameter has, and steps parts of parameters. A part is a whole parameter,
// or, if the rule works element by element, a piece of the flat parameter that begins at a multiple of Shards::kBlock.
// The numbers of a part do not depend on where the parameter was cut, nor on the number of threads.
// Thread rule: a rule is constant; step() runs on one thread and may use libtorch's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mortise {

// What a parameter is in the model. Muon and 8-bit AdamW treat embeddings and heads in another way than hidden layers.
enum class ParameterRole { kHidden, kEmbedding, kHead };

struct OptimizedParameter {
  std::string name;
  at::Tensor tensor;  // a leaf; its .grad() is what a step consumes, unless the optimizer is sharded
  bool decay = true;  // false: no weight decay, unless weight_decay is set
  ParameterRole role = ParameterRole::kHidden;
  double lr_scale = 1.0;                    // factor of the learning rate
  std::optional<double> weight_decay = {};  // instead of the optimizer's
  std::optional<bool> uses_muon = {};       // whether Muon steps it by Muon, if it is a matrix; null: by its role
};

// One tensor of state. In a checkpoint it is "<name>.<parameter>"; it starts as zeros.
struct StateTensor {
  std::string_view name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  // Numbers of the parameter that share one number of the state. Read only if parameters are cut.
  int64_t numbers_each = 1;
};

// What a rule steps.
struct StepPart {
  const OptimizedParameter* parameter = nullptr;
  at::Tensor weights;             // contiguous; of the parameter's shape, or flat if it was cut
  at::Tensor gradient;            // same size and dtype; a step may change it
  std::vector<at::Tensor> state;  // as state_of() lists them, or the parts of them
  double lr = 0.0;
  double weight_decay = 0.0;
};

struct AdamWOptions;

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // Reads the shape, dtype and role of the parameter.
  [[nodiscard]] virtual std::vector<StateTensor> state_of(const OptimizedParameter& parameter) const = 0;
  // Must a part be a whole parameter?
  [[nodiscard]] virtual bool needs_whole_parameters() const { return false; }
  // Does the step of a number depend on this number alone? Then ranks that share the layers step their own rows and columns.
  [[nodiscard]] virtual bool steps_numbers() const { return !needs_whole_parameters(); }
  // The settings of AdamW with moments of the parameters' dtype; null: another rule.
  [[nodiscard]] virtual const AdamWOptions* as_adamw() const { return nullptr; }
  // Update number `update`, counted from 1, from the gradients multiplied by `grad_factor`.
  virtual void step(std::span<StepPart> parts, int64_t update, double grad_factor) const = 0;
};

}  // namespace mortise
