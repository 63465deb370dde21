// A LoRA adapter in training (Hu et al. 2021): the base is frozen, and A and B of the chosen matrices are the
// parameters. It begins like PEFT's: A uniform in +-1/sqrt(in), B zero, no bias, scale alpha / rank (rsLoRA: the
// square root of the rank). Dropout is part of a pass (layers/lora_dropout.h): only updates have it.
//
// The model computes with merged matrices W + scale B A. merge() computes them again after every update, so training,
// sampling and a merged save see the same numbers. The base's own adapted matrices are kept next to the merged ones,
// and the reference model is a view of them. Cost of merge(): 2 in out rank flops per matrix.
// Thread rule: merge() writes; else plain values that share tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "model/adapters/lora_config.h"
#include "model/layers/decoder.h"
#include "model/weights/parameters.h"
#include "model/weights/weight_files.h"

namespace mortise {

// Which matrices get an adapter. A module is named by its name's end, from a dot on ("q_proj", "0.mlp.up_proj");
// "all-linear": every matrix of the layers.
struct LoraChoice {
  int64_t rank = 8;
  double alpha = 8.0;
  std::vector<std::string> target_modules = {"all-linear"};
  std::vector<std::string> exclude_modules = {};
  double dropout = 0.0;     // of the adapter's input, in [0, 1)
  bool use_rslora = false;  // scale alpha / sqrt(rank)
};

// "model.layers.0.self_attn.q_proj" and so on, in the order of the parameters. Errors name the entry that matches no
// module.
Result<std::vector<std::string>> choose_lora_modules(std::span<const NamedParameter> parameters,
                                                     const LoraChoice& choice);
// The modules of an adapter's folder. A tensor that is not A or B of a layer's matrix is an error that names it.
Result<std::vector<std::string>> list_lora_modules(Env& env, const Path& folder,
                                                   std::span<const NamedParameter> parameters);
struct LoraSize {
  int64_t num_trained = 0;  // elements of A and B
  int64_t num_adapted = 0;  // elements of the adapted matrices, whose base is kept next to the merged ones
  std::vector<std::array<int64_t, 2>> shapes;  // of A and B of each matrix
};
LoraSize measure_lora(std::span<const NamedParameter> parameters, std::span<const std::string> modules,
                      std::span<const LoraRank> ranks);
// What adapter_config.json of a fresh adapter says.
LoraConfig make_lora_config(const LoraChoice& choice, std::span<const std::string> modules,
                            std::span<const NamedParameter> parameters);

class TrainedLora {
 public:
  // Adapts `modules` of `store`, with these `ranks`. The parameters of `store` are frozen from now on, and its adapted
  // leaves hold the merged matrices. A and B are zero; see initialize() and load().
  TrainedLora(LoraConfig config, std::span<const std::string> modules, std::span<const LoraRank> ranks,
              ParameterStore& store);

  void initialize(uint64_t seed);
  Result<> load(Env& env, const Path& folder);
  // After every change of A and B.
  void merge();
  // The merged matrices of a layer, from its base, with the rows between them that have no adapter. Changes no version:
  // a pass may be under way.
  void merge_layer(int64_t layer);
  // The fused matrices of a layer that hold merged rows.
  [[nodiscard]] std::vector<at::Tensor> merged_matrices(int64_t layer) const;
  // Has a matrix of the layer an adapter?
  [[nodiscard]] bool adapts_layer(int64_t layer) const { return !merged_matrices(layer).empty(); }

  // A and B of each matrix, by PEFT's names.
  [[nodiscard]] std::vector<NamedParameter>& parameters() { return parameters_; }
  [[nodiscard]] const std::vector<NamedParameter>& parameters() const { return parameters_; }
  // The probability that an update drops a feature of the adapter's input.
  [[nodiscard]] double dropout() const { return config_.dropout; }
  // The model without the adapter, in the same memory.
  [[nodiscard]] const ParameterStore& base() const { return base_; }
  // adapter_config.json, adapter_model.safetensors. `base_model`: the base's folder; empty: as in the configuration.
  [[nodiscard]] Result<std::vector<FolderFile>> plan_save(const std::string& base_model, at::ScalarType stored) const;

 private:
  struct Matrix {
    LoraMatrix factors;
    at::Tensor merged_OI;
  };
  // Rows of a merged matrix, and where they come from.
  struct Rows {
    int64_t layer = 0;
    at::Tensor base_OI, merged_OI;  // the same rows
    LoraMatrix factors;             // undefined: not adapted
  };
  // A fused matrix and its leaves, some of which may be adapted. The first two are the base's.
  void adapt(at::Tensor& fused_OI, std::vector<at::Tensor>& leaves, std::vector<LoraMatrix>& lora,
             const std::unordered_map<const void*, size_t>& index_of, int64_t layer);
  LoraMatrix add_matrix(size_t module, const at::Tensor& base_OI);

  LoraConfig config_;
  std::vector<std::string> modules_;
  std::vector<LoraRank> ranks_;  // of the modules
  std::vector<NamedParameter> parameters_;
  std::vector<Matrix> matrices_;
  std::vector<Rows> rows_;  // of every fused matrix with an adapter
  ParameterStore base_;
};

}  // namespace mortise
