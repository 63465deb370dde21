// NEFTune (arXiv 2310.05914): uniform noise in the embeddings of an update, with counted random numbers.
//
// Each number of a token's embedding gets u alpha / sqrt(L H), with u in [-1, 1), L tokens in its row and H numbers in an
// embedding. u is a function of (seed, update, row, position, number), see foundation/base/rng.h. It does not depend on
// micro-batches, padding, ranks, threads or recomputed layers, and a resumed run has the same noise.
// Cost: about 1 ns per number and pass on one thread with AVX2; on a GPU also a copy of N H numbers. Thread rule: as
// libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mortise {

// The noise of one forward pass. All tensors are on the CPU.
struct EmbeddingNoise {
  uint64_t seed = 0;
  uint64_t update = 0;     // every update has its own noise
  at::Tensor rows_N;       // int64: the row of each token in the step
  at::Tensor positions_N;  // int64: its place in its row
  at::Tensor bounds_N;     // float64: the largest noise of each token
};

// [N, width], with the dtype and on the device of `numbers`.
at::Tensor embedding_noise(const EmbeddingNoise& noise, int64_t width, const at::TensorOptions& numbers);

}  // namespace mortise
