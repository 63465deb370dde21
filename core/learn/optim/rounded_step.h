// Steps a model without master weights, layer by layer (model/weights/rounded_matrices.h): a layer's matrices are widened
// to float32, stepped, rounded stochastically and freed, so that one layer at a time has masters. Parameters that are
// float32 anyway are one more group. If ranks share the layers, a rank steps its part. All draw the same random numbers for their
// parts, so that neighbours with the same numbers keep them.
// Cost: the step, and two passes over the matrices. Thread rule: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "foundation/base/rng.h"
#include "learn/optim/update_rule.h"
#include "model/model.h"

namespace mortise {

// Where the random numbers of the rounding come from, next to the number of the update.
struct RoundingSeed {
  uint64_t seed = 0;
  RandomPurpose purpose = RandomPurpose::kRounding;
};

class RoundedStep {
 public:
  // Borrows the model, which has no masters and stays where it is.
  RoundedStep(const Model& model, const std::vector<OptimizedParameter>& parameters, const RoundingSeed& seed);

  // Parameters that step together; each is in one group.
  [[nodiscard]] const std::vector<std::vector<size_t>>& groups() const { return groups_; }
  // Before and after the step of a group in an update.
  void open(size_t group) const;
  void close(size_t group, int64_t update) const;
  // Where the numbers of a parameter are: in its bfloat16 matrix if there is one, else in the parameter.
  [[nodiscard]] at::Tensor numbers(const at::Tensor& parameter) const;
  // If ranks share the numbers: rounds this rank's numbers of a parameter, from its `begin` on. The same bits.
  void round(const at::Tensor& parameter, int64_t begin, const at::Tensor& from, const at::Tensor& to,
             int64_t update) const;

 private:
  // Those that passes of this rank use.
  [[nodiscard]] const DecoderWeights& weights() const;
  [[nodiscard]] PhiloxKey key_of(int64_t update) const;

  const Model* model_;
  RoundingSeed seed_;
  std::vector<std::vector<size_t>> groups_;  // those without a layer, and then a group for each layer
};

}  // namespace mortise
