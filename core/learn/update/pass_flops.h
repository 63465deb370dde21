// The floating-point operations of passes, counted as they run, for perf/mfu/*.
//
// Counts the products of layers and head, and attention over the visible tokens; a multiply-add is two. A prompt that a
// group shares counts once, because it is computed once. Recomputed layers and logits do not count, nor does anything
// elementwise.
#pragma once

#include "model/model.h"

namespace mortise {

struct PassFlops {
  double forward = 0.0;
  double head = 0.0;      // the head's part of it
  double backward = 0.0;  // for the activations, and for the weights that are trained and have no adapter
};

PassFlops pass_flops(const Model& model, const PackedBatch& batch);

// A sum that passes add to. Thread rule: one thread at a time.
struct FlopCount {
  double total = 0.0;
};

}  // namespace mortise
