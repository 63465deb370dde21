// The weights in the layout of the decode kernels: panels of 32 output columns, [k][32], so that every step streams
// them in order. Rebuilt when the weights change. Embedding and norms (except those that count from 1) are read from
// the model.
//
// Matrices are float32, or rounded to bfloat16, which halves the bytes that a step reads. Those that the model itself has
// in bfloat16 stay so in every format, and what they are multiplied with is rounded to bfloat16, as in training. Biases,
// norms, embedding look-ups, other activations and sums stay float32.
// Cost: one copy of all matrices, and about 1 ns per weight to make it, on all members of the team. At the benchmark
// shapes that is 2 to 4 % of the generation that follows. Row-major weights would need gathers, or a packing inside
// each GEMM as in BLAS (measured: 60 to 95 GFLOP/s against 110). Thread rule: const after pack().
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

#include "foundation/base/team.h"
#include "generate/kernels/kernels.h"
#include "model/layers/decoder_weights.h"
#include "model/tensor/aligned.h"
#include "model/weights/model_config.h"

namespace mortise {

enum class WeightFormat {
  kFloat32,
  kBfloat16,
  kRounded,  // bfloat16, and so are its inputs: the matrices of a model that has them in bfloat16
};

struct PackedLinear {
  int64_t in = 0;
  int64_t out = 0;     // real columns; gate and up count apart
  int64_t panels = 0;  // panels of 32 columns; columns beyond `out` are zeros
  WeightFormat format = WeightFormat::kFloat32;
  float* data = nullptr;  // [panels][in][32]; bfloat16: two inputs a word (kernels.h)
  float* bias = nullptr;  // [panels * 32], or null

  // Words of 4 bytes.
  [[nodiscard]] int64_t panel_words() const { return (format == WeightFormat::kFloat32 ? in : (in + 1) / 2) * 32; }
  [[nodiscard]] int64_t num_weights() const { return panels * in * 32; }
  // y[i][0..32) (+)= x[i] * panel p, for `rows` rows; with the bias where there is one.
  void multiply(const Kernels& kernels, int64_t p, const float* x, int64_t x_stride, int64_t rows, float* y,
                int64_t y_stride, bool add) const {
    const float* const panel = data + p * panel_words();
    const float* const panel_bias = bias == nullptr ? nullptr : bias + p * 32;
    if (format == WeightFormat::kFloat32) {
      kernels.gemm_panel(x, x_stride, rows, in, panel, panel_bias, y, y_stride, add);
      return;
    }
    const auto product = format == WeightFormat::kRounded ? kernels.gemm_panel_rounded : kernels.gemm_panel_bf16;
    product(x, x_stride, rows, in, reinterpret_cast<const uint32_t*>(panel), panel_bias, y, y_stride, add);
  }
};

struct PackedExpert {
  PackedLinear gate_up;
  PackedLinear down;
};

struct PackedLayer {
  const float* input_norm = nullptr;
  const float* attention_norm = nullptr;  // null unless sandwich_norm
  const float* post_norm = nullptr;
  const float* mlp_norm = nullptr;  // null unless sandwich_norm
  const float* q_norm = nullptr;    // null unless qk_norm
  const float* k_norm = nullptr;
  const float* sinks = nullptr;  // by head; null unless attention_sinks
  PackedLinear qkv;
  PackedLinear o;
  // The MLP of a dense layer, or the shared expert of one with experts (without panels if there is none).
  PackedLinear gate_up;  // a panel holds 16 columns of gate, then the same 16 of up
  PackedLinear down;
  // A mixture of experts; empty in a dense layer.
  PackedLinear router;  // float32 in every format: which experts are taken must not depend on it
  std::vector<PackedExpert> experts;
  const float* shared_gate = nullptr;  // [H]; null without a shared expert
};

class PackedWeights {
 public:
  // Copies the matrices of a float32 CPU decoder. Memory is reused from the last time. `adds_biases`: products whose
  // results ranks add up (o, down) have their bias; only one rank of a group adds it.
  void pack(const ModelConfig& config, const DecoderWeights& weights, WeightFormat format, Team& team,
            bool adds_biases = true);
  void free();

  [[nodiscard]] bool ready() const { return ready_; }
  // Bytes of the layers' matrices, without the head.
  [[nodiscard]] int64_t num_layer_weights() const { return num_layer_weights_; }
  [[nodiscard]] int64_t layer_bytes() const { return layer_bytes_; }
  // Whether the layers' products take inputs that are rounded to bfloat16.
  [[nodiscard]] bool rounds_inputs() const { return layers.front().qkv.format == WeightFormat::kRounded; }

  std::vector<PackedLayer> layers;
  const float* embedding = nullptr;  // [V][H]
  const float* final_norm = nullptr;
  PackedLinear head;

 private:
  void lay_out(const DecoderWeights& weights, WeightFormat format, bool adds_biases);
  const float* norm_of(const ModelConfig& config, const at::Tensor& weight);
  const float* copy_of(const at::Tensor& vector, float added);

  FloatBuffer memory_;               // holds all matrices, in the order of their use
  std::deque<FloatBuffer> vectors_;  // 1 + weight of norms, and sinks; addresses do not change
  int64_t num_layer_weights_ = 0;
  int64_t layer_bytes_ = 0;
  bool ready_ = false;
};

}  // namespace mortise
