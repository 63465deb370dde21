// See packed_weights.h.
#include "generate/decode/packed_weights.h"

#include <algorithm>

namespace mortise {
namespace {

// Where column c of panel p comes from; -1: padding.
int64_t plain_row(int64_t p, int64_t c, int64_t rows) {
  const int64_t row = p * 32 + c;
  return row < rows ? row : -1;
}
int64_t gate_up_row(int64_t p, int64_t c, int64_t rows) {
  const int64_t half = rows / 2;
  const int64_t unit = p * 16 + c % 16;
  if (unit >= half) return -1;
  return c < 16 ? unit : half + unit;
}
using RowOf = int64_t (*)(int64_t, int64_t, int64_t);

// 16 inputs at a time, so that both sides stay in a few cache lines.
void pack_panel(const float* weight, int64_t in, int64_t rows, RowOf row_of, int64_t p, float* panel) {
  const float* source[32];
  for (int64_t c = 0; c < 32; ++c) {
    const int64_t row = row_of(p, c, rows);
    source[c] = row < 0 ? nullptr : weight + row * in;
  }
  for (int64_t begin = 0; begin < in; begin += 16) {
    const int64_t end = std::min(begin + 16, in);
    for (int64_t c = 0; c < 32; ++c) {
      if (source[c] == nullptr) {
        for (int64_t k = begin; k < end; ++k) panel[k * 32 + c] = 0.0F;
      } else {
        for (int64_t k = begin; k < end; ++k) panel[k * 32 + c] = source[c][k];
      }
    }
  }
}

const float* data_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr; }

void pack_linear(const at::Tensor& weight, const at::Tensor& bias, RowOf row_of, Team& team, PackedLinear& out) {
  out.out = weight.size(0);
  out.in = weight.size(1);
  out.panels = row_of == gate_up_row ? (out.out / 2 + 15) / 16 : (out.out + 31) / 32;
  out.data.reserve(out.panels * out.in * 32);
  const float* const source = weight.const_data_ptr<float>();
  const int members = team.size();
  team.run([&](int member) {
    for (int64_t p = out.panels * member / members; p < out.panels * (member + 1) / members; ++p) {
      pack_panel(source, out.in, out.out, row_of, p, out.data.data() + p * out.in * 32);
    }
  });
  if (!bias.defined()) return;
  out.bias.reserve(out.panels * 32);
  for (int64_t p = 0; p < out.panels; ++p) {
    for (int64_t c = 0; c < 32; ++c) {
      const int64_t row = row_of(p, c, out.out);
      out.bias.data()[p * 32 + c] = row < 0 ? 0.0F : bias.const_data_ptr<float>()[row];
    }
  }
}

int64_t bytes_of(const PackedLinear& linear) {
  return static_cast<int64_t>(sizeof(float)) * (linear.data.size() + linear.bias.size());
}

}  // namespace

const float* PackedWeights::norm_of(const ModelConfig& config, const at::Tensor& weight) {
  if (!config.norm_plus_one || !weight.defined()) return data_of(weight);
  FloatBuffer& out = norms_.emplace_back(weight.numel());
  for (int64_t i = 0; i < weight.numel(); ++i) out.data()[i] = 1.0F + weight.const_data_ptr<float>()[i];
  return out.data();
}

void PackedWeights::pack(const ModelConfig& config, const DecoderWeights& weights, Team& team) {
  norms_.clear();
  layers.resize(weights.layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    PackedLayer& to = layers[i];
    to.input_norm = norm_of(config, from.input_norm_H);
    to.attention_norm = norm_of(config, from.attention_norm_H);
    to.post_norm = norm_of(config, from.post_norm_H);
    to.mlp_norm = norm_of(config, from.mlp_norm_H);
    to.q_norm = norm_of(config, from.q_norm_D);
    to.k_norm = norm_of(config, from.k_norm_D);
    pack_linear(from.qkv_weight_QH, from.qkv_bias_Q, plain_row, team, to.qkv);
    pack_linear(from.o_weight_HQ, from.o_bias_H, plain_row, team, to.o);
    pack_linear(from.gate_up_weight_2IH, from.gate_up_bias_2I, gate_up_row, team, to.gate_up);
    pack_linear(from.down_weight_HI, from.down_bias_H, plain_row, team, to.down);
  }
  embedding = data_of(weights.embedding_VH);
  final_norm = norm_of(config, weights.final_norm_H);
  pack_linear(weights.head_VH, {}, plain_row, team, head);
  ready_ = true;
}

void PackedWeights::free() {
  layers.clear();
  norms_.clear();
  head = {};
  ready_ = false;
}

int64_t PackedWeights::size_bytes() const {
  int64_t total = bytes_of(head);
  for (const PackedLayer& layer : layers) {
    total += bytes_of(layer.qkv) + bytes_of(layer.o) + bytes_of(layer.gate_up) + bytes_of(layer.down);
  }
  return total;
}

}  // namespace mortise
