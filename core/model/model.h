// Model: a decoder read from, or written to, a Hugging Face folder.
//
// The named parameters are the trainable leaves (HF names); they are row slices of the fused matrices in weights(), so
// an optimizer updates in place and every reader sees it. forward_hidden builds an autograd graph where GradMode is on;
// the vocabulary head is separate (model/head), so that tokens x vocabulary is never held.
// Thread rule: const methods may be called from several threads while nobody writes the weights. Move-only.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "model/layers/decoder.h"
#include "model/layers/decoder_weights.h"
#include "model/tensor/packing.h"
#include "model/weights/model_config.h"
#include "model/weights/parameters.h"

namespace mortise {

struct SaveOptions {
  std::string dtype;  // "float32", "bfloat16", "float16", "float64"; empty: the model's own
};

class Model {
 public:
  // dtype: "float32" or "float64", whatever the files hold (F16, BF16, F32, F64 are converted).
  static Result<Model> load(Env& env, const Path& folder, const std::string& dtype = "float32");
  // Normal(0, initializer_range) matrices, zero biases, unit norms; a function of (config, seed) alone.
  static Result<Model> random(ModelConfig config, uint64_t seed, const std::string& dtype = "float32");

  Model(Model&&) = default;
  Model& operator=(Model&&) = default;

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] at::ScalarType dtype() const { return weights_.embedding_VH.scalar_type(); }
  [[nodiscard]] std::vector<NamedParameter>& parameters() { return parameters_; }
  [[nodiscard]] const std::vector<NamedParameter>& parameters() const { return parameters_; }
  // By HF name; null if there is none.
  [[nodiscard]] const NamedParameter* find_parameter(std::string_view name) const;
  [[nodiscard]] const DecoderWeights& weights() const { return weights_; }

  // [N, H], final norm applied. Ids and positions were checked by pack_rows.
  [[nodiscard]] at::Tensor forward_hidden(const PackedBatch& batch, const ForwardOptions& options = {}) const;
  // The leaf of the vocabulary head [V, H] (the embedding where tied): its .grad is where the head adds to.
  [[nodiscard]] at::Tensor head_weight() const;
  // head_weight().grad(), made of zeros where there is none yet: pass it as d_weight_VH of the head.
  [[nodiscard]] at::Tensor head_grad() const;

  // config.json, generation_config.json and model.safetensors: a folder that transformers loads.
  [[nodiscard]] Result<> save(Env& env, const Path& folder, const SaveOptions& options = {}) const;
  // A copy of the numbers that never requires grad: the reference model.
  [[nodiscard]] Model clone_frozen() const;
  void zero_grad();  // forgets all gradients

 private:
  Model() = default;
  void adopt(ParameterStore store);

  ModelConfig config_;
  DecoderWeights weights_;
  std::vector<NamedParameter> parameters_;
  DecoderLeaves leaves_;
};

}  // namespace mortise
