// What passes cost in floating-point operations, counted as they run: what perf/mfu/* is made of.
//
// Counted are the products of layers and head, and attention over the tokens that one sees; a multiply-add is two. A
// prompt that a group shares counts once, as it is computed once. Layers and logits that are computed a second time to
// save memory do not count, nor does anything elementwise.
#pragma once

#include "model/model.h"

namespace mortise {

struct PassFlops {
  double forward = 0.0;
  double backward = 0.0;  // to the weights and the activations; with an adapter, whose base is frozen, to the latter
};

PassFlops pass_flops(const Model& model, const PackedBatch& batch);

// A sum that passes add to. Thread rule: one thread at a time.
struct FlopCount {
  double total = 0.0;
};

}  // namespace mortise
