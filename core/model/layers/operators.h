// The layers as ATen operations, which run on any device, and the table by which the decoder takes them or kernels: the CPU's,
// or those of core/cuda (kernel_layers.h).
//
// Attention gathers the keys and values of each segment behind those of its prompt and then works on whole sequences
// (segment_attention.h). Norms, rotation, activation and experts are the plain versions of each layer. Linear maps are
// common to both: they are libtorch's products.
// Cost: as the kernels in products; the other operations pass the activations several times and keep more for backward.
// Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

#include "model/layers/attention.h"
#include "model/layers/decoder.h"
#include "model/layers/rms_norm.h"
#include "model/layers/router.h"
#include "model/layers/segment_attention.h"

namespace mortise {

struct LayerCode {
  at::Tensor (*rms_norm)(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps);
  std::pair<at::Tensor, at::Tensor> (*add_rms_norm)(const at::Tensor& x_NH, const at::Tensor& residual_NH,
                                                    const at::Tensor& weight_H, double eps);
  at::Tensor (*qk_norm)(const at::Tensor& qkv_NQ, const at::Tensor& q_weight_D, const at::Tensor& k_weight_D,
                        int64_t num_heads, int64_t num_kv_heads, double eps);
  at::Tensor (*rope_attention)(const at::Tensor& qkv_NQ, const PassSegments& segments, const at::Tensor& positions_N,
                               const RopeTable& table, const AttentionShape& shape,
                               const std::function<void(const at::Tensor&)>& on_qkv);
  at::Tensor (*gated)(const at::Tensor& gate_up_N2I, Activation activation);
  at::Tensor (*mixture)(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                        const ExpertLeaves& leaves, const ModelConfig& config);
  // The MLP of a dense layer whose matrices fit (gated_mlp.h, kernel_layers.h), while a graph is recorded. Null: it is always
  // the operations one by one.
  at::Tensor (*gated_mlp)(const at::Tensor& x_NH, const at::Tensor& gate_up_2IH, const at::Tensor& down_HI,
                          const std::vector<at::Tensor>& gate_up_leaves, const at::Tensor& down_leaf,
                          Activation activation) = nullptr;
  bool (*fits_gated_mlp)(const at::Tensor& x_NH, const at::Tensor& gate_up_2IH, const at::Tensor& down_HI) = nullptr;
  // The bias of qkv, qk_norm and rope_attention as one, for heads that takes_rotated_heads() (rotated_heads.h). The result is
  // bfloat16 if shape.rounds. Null: each is by itself.
  at::Tensor (*normed_attention)(const at::Tensor& qkv_NQ, const PassSegments& segments, const RopeTable& table,
                                 const AttentionShape& shape, const HeadNorms& norms, const HeadBias& bias) = nullptr;
  // The mixture and the choice of its router (without a RouterPass) in sampling. Null: `mixture` and route().
  at::Tensor (*mixture_to_sample)(const at::Tensor& x_NH, const Routing& routing, const LayerMatrices& matrices,
                                  const ExpertLeaves& leaves, const ModelConfig& config) = nullptr;
  Routing (*route_to_sample)(const at::Tensor& logits_NE, const MoeConfig& moe) = nullptr;
  // Norms and gates whose results only products of bfloat16 matrices read: they give bfloat16. Null: the product rounds them.
  const LayerCode* before_rounded = nullptr;
};

const LayerCode& operator_layers();

// The rotations of each token, [N, R/2], where positions_N lies: a pass of few tokens far behind makes no table of all
// positions before them. `length` as in rope_inverse_frequencies().
RopeTable token_rope_table(const RopeConfig& rope, int64_t head_dim, const at::Tensor& positions_N, int64_t length,
                           at::ScalarType dtype);

}  // namespace mortise
