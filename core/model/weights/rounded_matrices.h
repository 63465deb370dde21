// The layers' matrices in bfloat16 (model.dtype = "bfloat16"): copies of the float32 matrices, which are the masters that
// an optimizer steps. Router, embedding, head, norms and biases have no copy.
//
// The masters' memory can be freed. An optimizer then steps layer by layer: a layer gets its masters back, with the
// numbers of the copies, and after the step they are rounded stochastically (Gupta et al., arXiv:1502.02551): up with
// the probability that makes the copy's expected value the master. Nearest rounding would drop every step smaller than
// half the distance of two bfloat16 numbers. The random numbers are counted, so that the bits depend on neither threads
// nor a resume.
// Cost: 2 bytes per weight, and one pass over the matrices for each rounding. Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "foundation/base/rng.h"
#include "model/layers/decoder_weights.h"
#include "model/tensor/offload.h"

namespace mortise {

// The copies, with memory where the masters have it. Their numbers are not set.
void allocate_rounded(DecoderWeights& weights);

// The memory of a layer's copies comes and goes.
void free_rounded(const DecoderWeights& weights, size_t layer);
void allocate_rounded(const DecoderWeights& weights, size_t layer);

// The copies of a layer, and in the same order their masters.
[[nodiscard]] std::vector<at::Tensor> copies_of_layer(const DecoderWeights& weights, size_t layer);
[[nodiscard]] std::vector<at::Tensor> masters_of_layer(const DecoderWeights& weights, size_t layer);

// The copy of each master, by the memory of the master: the numbers of both have the same places.
using MasterCopies = std::unordered_map<const c10::StorageImpl*, at::Tensor>;
[[nodiscard]] MasterCopies copies_by_master(const DecoderWeights& weights);

// The count of all rounded numbers.
[[nodiscard]] int64_t rounded_numbers(const DecoderWeights& weights);

// Rounds every matrix that has memory to the nearest bfloat16 (ties to even). Nothing to do without copies. `offload`: where
// the masters may be; it releases each behind its use.
void round_to_nearest(const DecoderWeights& weights, const Offload* offload = nullptr);
// The same of one layer. Changes no version: a pass may be under way.
void round_to_nearest(const DecoderWeights& weights, size_t layer, const Offload* offload = nullptr);

// Moves the masters into files. Nothing to do without copies.
Result<> offload_masters(const DecoderWeights& weights, Offload& offload);

// The numbers of the copies, from another model of the same shape.
void copy_rounded(const DecoderWeights& from, const DecoderWeights& to, size_t layer);

// Frees the masters of a layer, or gives them memory and the numbers of their copies.
void free_masters(const DecoderWeights& weights, size_t layer);
void widen_masters(const DecoderWeights& weights, size_t layer);

// Rounds the masters of a layer stochastically. Numbers that bfloat16 has stay as they are.
void round_stochastically(const DecoderWeights& weights, size_t layer, const PhiloxKey& key);
// The same of some numbers of a parameter, from its `begin` on, in the place that they have in their matrix. Precondition:
// the parameter has copies.
void round_piece(const DecoderWeights& weights, const at::Tensor& parameter, int64_t begin, const at::Tensor& from,
                 const at::Tensor& to, const PhiloxKey& key);
// The same of one tensor by ATen operations, as on a device: the same bits. `counter` has the matrix and the layer. At most
// `most` numbers at once, a multiple of 64; their temporaries take about 50 bytes each. `first`: the place of the first one
// in its matrix.
void round_by_operators(const at::Tensor& from, const at::Tensor& to, PhiloxCounter counter, const PhiloxKey& key,
                        int64_t most = int64_t{1} << 24, int64_t first = 0);

// The part of the copies that holds the numbers of this parameter, in its shape. Precondition: there is one.
[[nodiscard]] at::Tensor rounded_slice(const DecoderWeights& weights, const at::Tensor& parameter);
// The layer whose copies hold this parameter; -1 if there is none.
[[nodiscard]] int64_t rounded_layer(const DecoderWeights& weights, const at::Tensor& parameter);

}  // namespace mortise
