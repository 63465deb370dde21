// See packed_weights.h.
#include "generate/decode/packed_weights.h"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <utility>

namespace mortise {
namespace {

// The source of column c of panel p; -1: padding.
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
// The same from rows in pairs, gate and up of a unit (gpt-oss).
int64_t pair_row(int64_t p, int64_t c, int64_t rows) {
  const int64_t unit = p * 16 + c % 16;
  return unit < rows / 2 ? 2 * unit + c / 16 : -1;
}
int64_t router_row(int64_t p, int64_t c, int64_t rows) { return plain_row(p, c, rows); }
using RowOf = int64_t (*)(int64_t, int64_t, int64_t);

uint32_t bf16_bits(float x) { return c10::BFloat16(x).x; }
uint32_t bf16_bits(c10::BFloat16 x) { return x.x; }

// Inputs [begin, end) of a column, `step` numbers from one to the next, into its place in the panel; begin is even.
void pack_column(const float* source, int64_t step, int64_t begin, int64_t end, float* panel) {
  for (int64_t k = begin; k < end; ++k) panel[k * 32] = source == nullptr ? 0.0F : source[k * step];
}
template <class Number>
void pack_column(const Number* source, int64_t step, int64_t begin, int64_t end, uint32_t* panel) {
  for (int64_t k = begin; k < end; k += 2) {
    const uint32_t low = source == nullptr ? 0 : bf16_bits(source[k * step]);
    const uint32_t high = source == nullptr || k + 1 == end ? 0 : bf16_bits(source[(k + 1) * step]);
    panel[k / 2 * 32] = low | (high << 16);
  }
}

// 16 inputs at a time, so that both sides stay in a few cache lines.
template <class Number, class Word>
void pack_panel(const at::Tensor& weight, RowOf row_of, int64_t p, Word* panel) {
  const Number* source[32];
  const int64_t in = weight.size(1), row_stride = weight.stride(0), step = weight.stride(1);
  for (int64_t c = 0; c < 32; ++c) {
    const int64_t row = row_of(p, c, weight.size(0));
    source[c] = row < 0 ? nullptr : weight.const_data_ptr<Number>() + row * row_stride;
  }
  for (int64_t begin = 0; begin < in; begin += 16) {
    const int64_t end = std::min(begin + 16, in);
    for (int64_t c = 0; c < 32; ++c) pack_column(source[c], step, begin, end, panel + c);
  }
}

const float* data_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr; }

void fill_linear(const at::Tensor& weight, const at::Tensor& bias, RowOf row_of, Team& team, const PackedLinear& out) {
  const bool is_rounded = weight.scalar_type() == at::kBFloat16;  // then the format is bfloat16 too
  team.run_tasks(out.panels, [&](int, int64_t p) {
    float* const panel = out.data + p * out.panel_words();
    auto* const words = reinterpret_cast<uint32_t*>(panel);
    if (is_rounded) {
      pack_panel<c10::BFloat16>(weight, row_of, p, words);
    } else if (out.format == WeightFormat::kFloat32) {
      pack_panel<float>(weight, row_of, p, panel);
    } else {
      pack_panel<float>(weight, row_of, p, words);
    }
  });
  if (!bias.defined()) return;
  for (int64_t p = 0; p < out.panels; ++p) {
    for (int64_t c = 0; c < 32; ++c) {
      const int64_t row = row_of(p, c, out.out);
      out.bias[p * 32 + c] = row < 0 ? 0.0F : bias.const_data_ptr<float>()[row];
    }
  }
}

// visit(weight, bias, row_of, packed) for every matrix of the layers, in the order of its use.
template <class Visit>
void visit_layers(const DecoderWeights& weights, bool adds_biases, std::vector<PackedLayer>& layers, Visit visit) {
  const auto added = [adds_biases](const at::Tensor& bias) { return adds_biases ? bias : at::Tensor(); };
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    const LayerMatrices matrices = weights.matrices(i);
    PackedLayer& to = layers[i];
    visit(matrices.qkv_QH, from.qkv_bias_Q, plain_row, to.qkv);
    visit(matrices.o_HQ, added(from.o_bias_H), plain_row, to.o);
    if (matrices.gate_up_2IH.defined()) {
      visit(matrices.gate_up_2IH, from.gate_up_bias_2I, gate_up_row, to.gate_up);
      visit(matrices.down_HI, added(from.down_bias_H), plain_row, to.down);
    }
    if (!from.experts.defined()) continue;
    const ExpertWeights& experts = from.experts;
    visit(experts.router_EH, experts.router_bias_E, router_row, to.router);
    for (size_t e = 0; e < to.experts.size(); ++e) {
      const auto index = static_cast<int64_t>(e);
      const at::Tensor gate_up = matrices.expert_gate_up_E2IH.select(0, index);
      const at::Tensor down = matrices.expert_down_EHI.select(0, index);
      if (experts.down_bias_EH.defined()) {  // stacked
        visit(gate_up.t(), experts.gate_up_bias_E2I.select(0, index), pair_row, to.experts[e].gate_up);
        visit(down.t(), added(experts.down_bias_EH.select(0, index)), plain_row, to.experts[e].down);
      } else {
        visit(gate_up, {}, gate_up_row, to.experts[e].gate_up);
        visit(down, {}, plain_row, to.experts[e].down);
      }
    }
  }
}

}  // namespace

const float* PackedWeights::norm_of(const ModelConfig& config, const at::Tensor& weight) {
  return config.norm_plus_one ? copy_of(weight, 1.0F) : data_of(weight);
}

const float* PackedWeights::copy_of(const at::Tensor& vector, float added) {
  if (!vector.defined()) return nullptr;
  FloatBuffer& out = vectors_.emplace_back(vector.numel());
  for (int64_t i = 0; i < vector.numel(); ++i) out.data()[i] = added + vector.const_data_ptr<float>()[i];
  return out.data();
}

// First the shapes, then the places: one block of memory has all matrices, one after the other.
void PackedWeights::lay_out(const DecoderWeights& weights, WeightFormat format, bool adds_biases) {
  int64_t used = 0;
  const auto take = [&](int64_t words) { return std::exchange(used, used + (words + 15) / 16 * 16); };
  std::vector<std::pair<float**, int64_t>> places;
  const auto shape = [&](const at::Tensor& weight, const at::Tensor& bias, RowOf row_of, PackedLinear& out) {
    out = {};
    out.format = row_of == router_row ? WeightFormat::kFloat32 : format;
    if (weight.scalar_type() == at::kBFloat16) out.format = WeightFormat::kRounded;
    out.out = weight.size(0);
    out.in = weight.size(1);
    const bool has_pairs = row_of == gate_up_row || row_of == pair_row;
    out.panels = has_pairs ? (out.out / 2 + 15) / 16 : (out.out + 31) / 32;
    places.emplace_back(&out.data, take(out.panels * out.panel_words()));
    if (bias.defined()) places.emplace_back(&out.bias, take(out.panels * 32));
  };
  num_layer_weights_ = 0;
  visit_layers(weights, adds_biases, layers,
               [&](const at::Tensor& weight, const at::Tensor& bias, RowOf row_of, PackedLinear& out) {
                 shape(weight, bias, row_of, out);
                 num_layer_weights_ += out.num_weights();
               });
  layer_bytes_ = used * static_cast<int64_t>(sizeof(float));
  shape(weights.head_VH, {}, plain_row, head);
  memory_.reserve(used);
  for (const auto& [pointer, offset] : places) *pointer = memory_.data() + offset;
}

void PackedWeights::pack(const ModelConfig& config, const DecoderWeights& weights, WeightFormat format, Team& team,
                         bool adds_biases) {
  vectors_.clear();
  layers.resize(weights.layers.size());
  for (size_t i = 0; i < layers.size(); ++i)  // their places are kept while the memory is laid out
    layers[i].experts.resize(
        static_cast<size_t>(config.has_experts(static_cast<int64_t>(i)) ? config.moe.num_experts : 0));
  lay_out(weights, format, adds_biases);
  visit_layers(weights, adds_biases, layers,
               [&](const at::Tensor& weight, const at::Tensor& bias, RowOf row_of, PackedLinear& out) {
                 fill_linear(weight, bias, row_of, team, out);
               });
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    PackedLayer& to = layers[i];
    to.input_norm = norm_of(config, from.input_norm_H);
    to.attention_norm = norm_of(config, from.attention_norm_H);
    to.post_norm = norm_of(config, from.post_norm_H);
    to.mlp_norm = norm_of(config, from.mlp_norm_H);
    to.q_norm = norm_of(config, from.q_norm_D);
    to.k_norm = norm_of(config, from.k_norm_D);
    to.sinks = copy_of(from.sinks_A, 0.0F);  // a rank's part of them may be gone after this
    to.shared_gate = data_of(from.experts.shared_gate_1H);
    // Its inputs are rounded before they are scaled, as in training, and are then no bfloat16 numbers any more.
    if (to.shared_gate != nullptr && to.down.format == WeightFormat::kRounded) to.down.format = WeightFormat::kBfloat16;
  }
  embedding = data_of(weights.embedding_VH);
  final_norm = norm_of(config, weights.final_norm_H);
  fill_linear(weights.head_VH, {}, plain_row, team, head);
  ready_ = true;
}

void PackedWeights::free() {
  layers.clear();
  vectors_.clear();
  memory_.free();
  head = {};
  ready_ = false;
}

}  // namespace mortise
