// The weights of a decoder in the layout of the kernels: q, k, v in one matrix, gate and up in one matrix, so that each
// is one GEMM. The named parameters (Hugging Face names) are row slices that share this storage, so both see updates in
// place. Training and generation read the same tensors. Norm weights are as in the files (norm_plus_one adds 1).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace mortise {

// A mixture of experts, in the layers that have one. The experts lie one behind the other. Trap: the names give the shapes
// of all families but gpt-oss, where gate_up is [E, H, 2 I], a unit's gate before its up, and down is [E, I, H].
struct ExpertWeights {
  at::Tensor router_EH;
  at::Tensor router_bias_E;     // gpt-oss; undefined else, as the other biases
  at::Tensor gate_up_E2IH;      // by expert: rows of gate, then up
  at::Tensor gate_up_bias_E2I;  // a unit's gate before its up
  at::Tensor down_EHI;
  at::Tensor down_bias_EH;
  at::Tensor shared_gate_1H;  // scales the shared expert's output; undefined if there is none

  [[nodiscard]] bool defined() const { return router_EH.defined(); }
};

struct LayerWeights {
  at::Tensor input_norm_H;
  at::Tensor qkv_weight_QH;  // [(Hq + 2 Hkv) D, H]: rows of q, then k, then v
  at::Tensor qkv_bias_Q;     // undefined if the family has none
  at::Tensor q_norm_D;       // undefined unless qk_norm
  at::Tensor k_norm_D;
  at::Tensor sinks_A;           // by head; undefined unless attention_sinks
  at::Tensor o_weight_HQ;       // [H, Hq D]
  at::Tensor o_bias_H;          // undefined if there is none
  at::Tensor attention_norm_H;  // behind attention, before the residual sum; undefined unless sandwich_norm
  at::Tensor post_norm_H;       // before the MLP
  // The MLP of a dense layer, or the shared expert of one with experts (undefined if there is none).
  at::Tensor gate_up_weight_2IH;  // [2 I, H]: rows of gate, then up
  at::Tensor gate_up_bias_2I;     // undefined if there is none
  at::Tensor down_weight_HI;      // [H, I]
  at::Tensor down_bias_H;         // undefined if there is none
  at::Tensor mlp_norm_H;          // behind the MLP, before the residual sum; undefined unless sandwich_norm
  ExpertWeights experts;          // undefined in a dense layer
};

// What the products of a layer read.
struct LayerMatrices {
  at::Tensor qkv_QH;
  at::Tensor o_HQ;
  at::Tensor gate_up_2IH;
  at::Tensor down_HI;
  at::Tensor expert_gate_up_E2IH;  // see ExpertWeights for the shapes of gpt-oss
  at::Tensor expert_down_EHI;
};

// These do not require grad; the leaves do (Model::parameters).
struct DecoderWeights {
  at::Tensor embedding_VH;
  std::vector<LayerWeights> layers;
  at::Tensor final_norm_H;
  at::Tensor head_VH;  // the same tensor as embedding_VH when tied; [num_labels, H] for a classifier
  // Copies of the layers' matrices in bfloat16, which passes read instead. Empty: passes read the matrices themselves.
  std::vector<LayerMatrices> rounded;

  [[nodiscard]] LayerMatrices matrices(size_t layer) const {
    if (!rounded.empty()) return rounded[layer];
    const LayerWeights& w = layers[layer];
    return {w.qkv_weight_QH,  w.o_weight_HQ,          w.gate_up_weight_2IH,
            w.down_weight_HI, w.experts.gate_up_E2IH, w.experts.down_EHI};
  }
};

}  // namespace mortise
