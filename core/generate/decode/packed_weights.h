// The weights as the decode kernels read them: panels of 32 output columns, [k][32], so that every step streams them in
// order. Rebuilt when the weights change; norms (but those that count from 1) and embedding are read where the model
// keeps them.
//
// Cost: one copy of all matrices (float32) and about 1 ns a weight to make it, on all members of the team; at the
// benchmark shapes that is 2 to 4 % of the generation that follows. Row-major weights read in place would need gathers
// or a packing inside each GEMM, which is what BLAS does (measured: 60 to 95 GFLOP/s against 110). Thread rule: const
// after pack().
#pragma once

#include <deque>
#include <vector>

#include "generate/decode/aligned.h"
#include "generate/decode/team.h"
#include "model/layers/decoder_weights.h"
#include "model/weights/model_config.h"

namespace mortise {

struct PackedLinear {
  int64_t in = 0;
  int64_t out = 0;     // real columns; gate and up count apart
  int64_t panels = 0;  // of 32 columns; columns beyond `out` are zeros
  FloatBuffer data;    // [panels][in][32]
  FloatBuffer bias;    // [panels * 32], or empty
  [[nodiscard]] const float* panel(int64_t p) const { return data.data() + p * in * 32; }
  [[nodiscard]] const float* panel_bias(int64_t p) const { return bias.size() == 0 ? nullptr : bias.data() + p * 32; }
};

struct PackedLayer {
  const float* input_norm = nullptr;
  const float* attention_norm = nullptr;  // null unless sandwich_norm
  const float* post_norm = nullptr;
  const float* mlp_norm = nullptr;  // null unless sandwich_norm
  const float* q_norm = nullptr;    // null unless qk_norm
  const float* k_norm = nullptr;
  PackedLinear qkv;
  PackedLinear o;
  PackedLinear gate_up;  // a panel holds 16 columns of gate, then the same 16 of up
  PackedLinear down;
};

class PackedWeights {
 public:
  // Copies the matrices of a float32 CPU decoder. Buffers are reused from the last time.
  void pack(const ModelConfig& config, const DecoderWeights& weights, Team& team);
  void free();

  [[nodiscard]] bool ready() const { return ready_; }
  [[nodiscard]] int64_t size_bytes() const;

  std::vector<PackedLayer> layers;
  const float* embedding = nullptr;  // [V][H]
  const float* final_norm = nullptr;
  PackedLinear head;

 private:
  const float* norm_of(const ModelConfig& config, const at::Tensor& weight);

  std::deque<FloatBuffer> norms_;  // 1 + weight; addresses stay
  bool ready_ = false;
};

}  // namespace mortise
