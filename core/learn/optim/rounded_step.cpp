// See rounded_step.h.
#include "learn/optim/rounded_step.h"

#include "model/weights/rounded_matrices.h"

namespace mortise {

RoundedStep::RoundedStep(const Model& model, const std::vector<OptimizedParameter>& parameters,
                         const RoundingSeed& seed)
    : model_(&model), seed_(seed), groups_(model.weights().layers.size() + 1) {
  for (size_t i = 0; i < parameters.size(); ++i)
    groups_[static_cast<size_t>(rounded_layer(weights(), parameters[i].tensor) + 1)].push_back(i);
}

const DecoderWeights& RoundedStep::weights() const {
  return model_->model_part() != nullptr ? model_->model_part()->weights() : model_->weights();
}

void RoundedStep::open(size_t group) const {
  if (group > 0) widen_masters(weights(), group - 1);
}

void RoundedStep::close(size_t group, int64_t update) const {
  if (group == 0) return;
  round_stochastically(weights(), group - 1, key_of(update));
  free_masters(weights(), group - 1);
}

PhiloxKey RoundedStep::key_of(int64_t update) const {
  return derive_philox_key(seed_.seed, seed_.purpose, static_cast<uint64_t>(update));
}

at::Tensor RoundedStep::numbers(const at::Tensor& parameter) const {
  const bool has_copy = rounded_layer(weights(), parameter) >= 0;
  return (has_copy ? rounded_slice(weights(), parameter) : parameter).detach();
}

void RoundedStep::round(const at::Tensor& parameter, int64_t begin, const at::Tensor& from, const at::Tensor& to,
                        int64_t update) const {
  round_piece(weights(), parameter, begin, from.reshape({-1}), to.reshape({-1}), key_of(update));
}

}  // namespace mortise
