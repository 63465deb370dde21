// A part of a model (embedding, layer, head) whose matrices are spread over ranks (weight_shards.h): what travels between
// the ranks, what a rank keeps of it, and which memory comes and goes with it.
//
// Layers of a bfloat16 model travel in bfloat16. Next to these numbers a rank keeps its float32 masters, if the model has
// any. The base of an adapter travels as it is, because merged matrices are computed from it, and rounded after that.
// Thread rule: plain values.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "learn/optim/shards.h"
#include "model/model.h"
#include "model/weights/weight_units.h"

namespace mortise {

// What passes read: the parameters themselves, what an adapter makes of them, or, without an adapter, the base of one.
enum class SpreadModel { kParameters, kAdapted, kBase };

struct SpreadPart {
  explicit SpreadPart(Shards cut) : shards(std::move(cut)) {}

  Shards shards;
  std::vector<at::Tensor> tensors;    // what travels; these share the model's memory, but not its versions
  std::vector<at::Tensor> masters;    // the same of their float32 masters; empty: there are none
  std::vector<c10::Storage> kept;     // memory that passes read
  std::vector<c10::Storage> passing;  // memory of what these numbers are computed from when the part arrives
  std::vector<c10::Storage> of_masters;
  bool is_read = true;  // false: an adapter trains the matrices as a whole, so no pass needs these
  bool is_open = false, has_passing = false;

  // This rank's numbers, as long as those of the rank that has most.
  at::Tensor padded, padded_masters;
  int64_t own_size = 0;
  // Its own: what travels, and what is stepped and saved.
  [[nodiscard]] at::Tensor own() const { return padded.narrow(0, 0, own_size); }
  [[nodiscard]] at::Tensor numbers() const {
    return padded_masters.defined() ? padded_masters.narrow(0, 0, own_size) : own();
  }

  // Memory for a rank's numbers, and these from the model, whose matrices have memory, or from numbers() elsewhere.
  void make_own(int rank);
  void take_from_model(int rank);
  void take_numbers(const at::Tensor& numbers);
  // What travels follows the masters.
  void round();
  void drop_masters();
};

// `indices`: of WeightUnits. `keeps_base`: passes read the base of adapted matrices, which are those of layers.
[[nodiscard]] SpreadPart make_spread_part(const Model& model, SpreadModel kind, size_t part,
                                          std::span<const size_t> indices, int num_ranks, ShardCut cut,
                                          bool keeps_base);

// The parameters that WeightUnits counts: this rank's, and of a model with an adapter those of its base.
[[nodiscard]] const std::vector<NamedParameter>& parameters_to_spread(const Model& model);
// Those that passes read.
[[nodiscard]] const std::vector<NamedParameter>& pass_parameters(const Model& model);
[[nodiscard]] const DecoderWeights& pass_weights(const Model& model);

}  // namespace mortise
