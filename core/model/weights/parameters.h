// The storage of a model: fused matrices (DecoderWeights), the leaves that are slices of them (DecoderLeaves), and the
// list of leaves by Hugging Face name. Thread rule: plain values sharing tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/layers/decoder.h"
#include "model/layers/decoder_weights.h"
#include "model/weights/model_config.h"

namespace mortise {

constexpr const char* kScoreHead = "score.weight";  // a classifier's head

struct NamedParameter {
  std::string name;   // "model.layers.0.self_attn.q_proj.weight"
  at::Tensor tensor;  // leaf, requires grad unless frozen
  bool decay = true;  // false for biases and norms
};

struct ParameterStore {
  DecoderWeights weights;
  DecoderLeaves leaves;
  std::vector<NamedParameter> parameters;
};

// kCommon: matrices that ranks may share (weight_units.h) have no memory yet.
enum class ParameterMemory { kAll, kCommon };
// Uninitialised memory for every parameter of the config.
ParameterStore allocate_parameters(const ModelConfig& config, at::ScalarType dtype, bool requires_grad,
                                   at::Device device = at::kCPU, ParameterMemory memory = ParameterMemory::kAll);

// Normal(0, initializer_range) matrices, zero biases, norms that multiply by 1. Element (row, column) of the p-th
// parameter depends only on (seed, p, row, column).
void initialize_parameters(ParameterStore& store, const ModelConfig& config, uint64_t seed);

// Puts a classifier's head in the place of the vocabulary's, with the numbers that initialize_parameters gives it in a
// model of `config`.
void replace_head_by_score(ParameterStore& store, const ModelConfig& config, uint64_t seed);

}  // namespace mortise
