// The built-in policy losses as a user of torch writes them: whole padded tensors, one operator after the other, the
// gradient by autograd. What bench_losses holds the plugins against, in time and in numbers.
//
// Parameters are the plugins' defaults (dro: beta 0.3). Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mortise {

// (B,T) float32, masked tokens at the rows' ends. Rows of a prompt are neighbours.
struct EagerBatch {
  at::Tensor log_prob, old_log_prob, rollout_log_prob, advantages, mask;
  int64_t rows_per_prompt = 1;
};

struct EagerLoss {
  std::string name;
  at::Tensor (*loss)(const EagerBatch& batch);  // (B,T), of masked tokens anything
  // What part of the numbers may differ from the plugin's, by L1: more where a choice among tokens is rounded or drawn.
  double tolerance = 1e-4;
};

std::vector<EagerLoss> eager_losses();

}  // namespace mortise
