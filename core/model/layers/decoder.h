// The decoder: embedding, blocks of attention and gated MLP, final norm. All families share this code, and ModelConfig
// switches it. It has fast layers and plain reference implementations.
//
// Cost: 2 flops per parameter and token forward, twice that backward, plus attention. About nine autograd nodes per
// block. Thread rule: weights are only read.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "model/layers/attention.h"
#include "model/layers/decoder_weights.h"
#include "model/layers/embedding_noise.h"
#include "model/layers/lora_linear.h"
#include "model/layers/router.h"
#include "model/layers/sampled_forward.h"
#include "model/layers/sequence.h"
#include "model/layers/tensor_ranks.h"
#include "model/layers/weight_gate.h"
#include "model/tensor/packing.h"
#include "model/weights/model_config.h"

namespace mortise {

struct LayerCode;  // operators.h

// The implementation of the layers: hand-written kernels, ATen operations as their reference, or the operations that run
// on any device (operators.h). A model that lies on a device takes kOperators, whatever the options say.
enum class LayerPath { kFast, kPlain, kOperators };

struct ForwardOptions {
  LayerPath path = LayerPath::kFast;
  // Called after each layer's projection and rotation with qkv [N, (Hq + 2 Hkv) D] (q and k rotated), which a prefill
  // copies into its KV cache. The tensor may be read only during the call.
  std::function<void(int64_t layer, const at::Tensor& qkv_NQ)> on_qkv = {};
  // kOperators: takes the place of attention over the batch's own segments, as decoding needs. Gets the rotated qkv, and
  // returns [N, Hq D].
  std::function<at::Tensor(int64_t layer, const at::Tensor& qkv_NQ, const AttentionShape& shape)> attend = {};
  // kOperators: the same before the rotation, which it computes itself. No table of rotations is made then. It also adds
  // bias_Q to each row of qkv, if that is defined. The result may be bfloat16 if the layers' matrices are.
  std::function<at::Tensor(int64_t layer, const at::Tensor& qkv_NQ, const AttentionShape& shape,
                           const at::Tensor& bias_Q)>
      attend_unrotated = {};
  // If a graph is recorded, the first so many layers (but of kPlain none) keep only their input, and backward computes
  // them again (recompute.h). Not together with on_qkv. The model must not move until then.
  int64_t recomputed_layers = 0;
  // The dropout of the adapter in training. Not set: no dropout.
  std::optional<LoraDropout> lora_dropout = {};
  // The noise in the embeddings of an update: of this rank's tokens. Not set: none.
  std::optional<EmbeddingNoise> embedding_noise = {};
  // What the routers of a mixture of experts are told, and tell; null: nothing. A layer that is computed again uses it
  // in backward too.
  std::shared_ptr<RouterPass> routing = {};
  // Brings matrices into memory where they are not all there; null: they are. Model::forward_hidden sets it. The head is
  // left open: WeightGate::finish_forward closes it.
  std::shared_ptr<WeightGate> gate = {};
  // The ranks that share the tokens of the batch; null: this one has all. Positions and segments are those of all tokens,
  // but `lora_dropout`, `embedding_noise` and `routing` are about this rank's own. Not together with on_qkv.
  std::shared_ptr<const SequenceShard> sequence = {};
  // The ranks that share the layers, of which the weights are this rank's part; null: they are whole.
  // Model::forward_hidden sets it.
  std::shared_ptr<TensorRanks> tensor = {};
  // ... and the embedding; null: it is whole.
  std::shared_ptr<const VocabularyShare> vocabulary = {};
  // kFast: what sampling has computed of these tokens with these weights. The pass then only records the graph for
  // backward. For models that reads_sampled() takes; not together with any of the above but `path`. Null: nothing.
  std::shared_ptr<const SampledPass> sampled = {};
};

// The leaves of ExpertWeights; gate and up of expert e are gate_up[2 e] and gate_up[2 e + 1]. In the stacked form
// gate_up and down are one leaf each.
struct ExpertLeaves {
  at::Tensor router;
  at::Tensor router_bias;
  std::vector<at::Tensor> gate_up;
  at::Tensor gate_up_bias;
  std::vector<at::Tensor> down;
  at::Tensor down_bias;
  at::Tensor shared_gate;
  // For a model with an adapter in training; undefined or empty where none is adapted.
  std::vector<LoraMatrix> router_lora;
  LoraMatrix gate_up_lora;  // for all experts (expert_lora.h)
  LoraMatrix down_lora;
  std::vector<LoraMatrix> shared_gate_lora;
};

// The leaves: row slices of the tensors of LayerWeights, or the same memory. Undefined if there is none.
struct LayerLeaves {
  at::Tensor input_norm;
  std::vector<at::Tensor> qkv_weights;
  std::vector<at::Tensor> qkv_biases;
  at::Tensor q_norm;
  at::Tensor k_norm;
  at::Tensor sinks;
  at::Tensor o_weight;
  at::Tensor o_bias;
  at::Tensor attention_norm;
  at::Tensor post_norm;
  std::vector<at::Tensor> gate_up_weights;
  std::vector<at::Tensor> gate_up_biases;
  at::Tensor down_weight;
  at::Tensor down_bias;
  at::Tensor mlp_norm;
  ExpertLeaves experts;
  // For a model with an adapter in training: one per weight above; empty if none is adapted.
  std::vector<LoraMatrix> qkv_lora;
  std::vector<LoraMatrix> o_lora;
  std::vector<LoraMatrix> gate_up_lora;
  std::vector<LoraMatrix> down_lora;
};

struct DecoderLeaves {
  at::Tensor embedding;
  std::vector<LayerLeaves> layers;
  at::Tensor final_norm;
  at::Tensor head;
};

// [N, H], final norm applied: this rank's tokens.
at::Tensor decoder_forward(const ModelConfig& config, const DecoderWeights& weights, const DecoderLeaves& leaves,
                           const PackedBatch& batch, const ForwardOptions& options);

}  // namespace mortise
