// Sends gradients to the ranks that own them (shards.h). Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

#include "dist/communicator.h"
#include "learn/optim/shards.h"

namespace mortise {

// A gradient on one of the ranks.
struct RankGradient {
  int rank = 0;
  std::vector<at::Tensor> tensors;  // by parameter; empty on the other ranks
};

// Adds the terms [piece], which come in the order of the gradients, to a piece of what this rank owns.
using AddTerms = std::function<void(const std::vector<at::Tensor>& terms, const at::Tensor& owned)>;

// Gives every gradient to `add`, piece by piece. `owned` has the numbers of this rank's range of the flat order. All
// ranks give the same list, but for the tensors. A rank sends and receives at most 32 MiB at a time. The pieces are the
// same for all lists of at most `most_gradients`. Collective.
Result<> reduce_to_owned(Communicator& communicator, const Shards& shards, std::span<const RankGradient> gradients,
                         const AddTerms& add, const at::Tensor& owned, size_t most_gradients = 0);

}  // namespace mortise
