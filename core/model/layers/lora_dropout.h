// Dropout of the adapter's input (as PEFT: before A), with counted random numbers.
//
// Whether a feature is dropped is a function of (seed, update, module, owner and position of the token, feature), see
// foundation/base/rng.h and token_owner. It does not depend on micro-batches, padding, threads, prefix sharing or
// recomputed layers, and a resumed run drops the same features. Nothing is kept for backward: the mask is made again.
// Cost: about 1 ns per feature and pass on one thread with AVX2; lora_dropout_operators.h has that of a device.
// Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "foundation/base/rng.h"

namespace mortise {

// The dropout of one forward pass.
struct LoraDropout {
  double probability = 0.0;  // probability that a feature is dropped; in (0, 1)
  uint64_t seed = 0;
  uint64_t update = 0;     // every update has its own masks
  at::Tensor owners_N;     // int64; on the CPU if x is there, because a kernel reads them
  at::Tensor positions_N;  // the same
};

// How the random numbers of a matrix decide: a feature is dropped if its word is below the threshold.
struct DropoutMask {
  PhiloxKey key = {};
  uint32_t threshold = 0;
  int64_t first_feature = 0;  // that with which the rows begin
};
DropoutMask dropout_mask(const LoraDropout& dropout, int64_t module, int64_t first_feature = 0);

// drop(x): dropped features are 0, the others x / (1 - probability). `module`: the adapter's matrix. `first_feature`: the one
// with which x begins, if it has only some of them.
at::Tensor lora_dropped(const at::Tensor& x_NI, const LoraDropout& dropout, int64_t module, int64_t first_feature = 0);
// drop(x) - x.
at::Tensor lora_dropout_change(const at::Tensor& x_NI, const LoraDropout& dropout, int64_t module,
                               int64_t first_feature = 0);

}  // namespace mortise
