// See decoder.h.
#include "model/layers/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "model/device/kernel_table.h"
#include "model/layers/experts.h"
#include "model/layers/gated.h"
#include "model/layers/gated_mlp.h"
#include "model/layers/kernel_layers.h"
#include "model/layers/linear.h"
#include "model/layers/lora_linear.h"
#include "model/layers/operators.h"
#include "model/layers/recompute.h"
#include "model/layers/rms_norm.h"
#include "model/layers/rotated_heads.h"
#include "model/layers/select_rows.h"

namespace mortise {
namespace {

at::Tensor rope_attention_kernel(const at::Tensor& qkv_NQ, const PassSegments& segments, const at::Tensor& positions_N,
                                 const RopeTable& table, const AttentionShape& shape,
                                 const std::function<void(const at::Tensor&)>& on_qkv) {
  return rope_attention(qkv_NQ, segments.rows_S4, positions_N, table, shape, on_qkv);
}

const LayerCode kCpuKernels = {rms_norm, add_rms_norm, qk_norm,   rope_attention_kernel,
                               gated,    mixture,      gated_mlp, fits_gated_mlp};

// What every layer of one forward shares. A layer that is computed again reads it in backward too.
struct Pass {
  const ModelConfig& config;
  const LayerCode& code;
  std::function<void(int64_t layer, const at::Tensor& qkv_NQ)> on_qkv;
  std::function<at::Tensor(int64_t layer, const at::Tensor& qkv_NQ, const AttentionShape& shape)> attend;
  decltype(ForwardOptions::attend_unrotated) attend_unrotated;
  PassSegments segments;
  at::Tensor positions;
  RopeTable table;
  RopeTable window_table;  // for layers with a window, where those have their own
  std::optional<LoraDropout> lora_dropout;
  std::shared_ptr<RouterPass> routing;
  std::shared_ptr<WeightGate> gate;
  bool rounds;          // the matrices are bfloat16
  bool writes_rounded;  // ... and norms and gates before their products write bfloat16
  std::shared_ptr<const SequenceShard> sequence;
  std::shared_ptr<TensorRanks> tensor;

  AttentionShape shape(int64_t layer, const at::Tensor& sinks) const {
    AttentionShape out{config.num_heads, config.num_kv_heads, config.head_dim, config.score_scale()};
    out.window = config.window(layer);
    out.sinks_A = sinks;
    out.softcap = config.attention_softcap;
    out.rounds = rounds;
    return out;
  }
  const LoraDropout* dropout() const { return lora_dropout ? &*lora_dropout : nullptr; }
  const RopeTable& rope(int64_t layer) const { return config.uses_window_rope(layer) ? window_table : table; }
  // What computes a norm or gate whose result only products of the layers' matrices read.
  const LayerCode& before_product() const { return writes_rounded ? *code.before_rounded : code; }
  [[nodiscard]] bool takes_normed_attention(int64_t layer) const {
    return code.normed_attention != nullptr && !on_qkv && !attend && !attend_unrotated &&
           takes_rotated_heads(shape(layer, {}), rope(layer), config.qk_norm);
  }
  [[nodiscard]] bool samples() const { return attend_unrotated && !at::GradMode::is_enabled(); }
  // The factor of a norm.
  at::Tensor scale(const at::Tensor& weight) const { return config.norm_plus_one ? weight + 1.0 : weight; }
};

// What a matrix reads whose rows the ranks may share.
at::Tensor entered(const Pass& pass, const at::Tensor& x) {
  return pass.tensor == nullptr ? x : enter_split(x, pass.tensor);
}

// The adapted matrices that this rank has.
std::vector<LoraMatrix> own_parts(const Pass& pass, const std::vector<LoraMatrix>& lora) {
  if (pass.tensor == nullptr) return lora;
  std::vector<LoraMatrix> out;
  for (const LoraMatrix& matrix : lora) out.push_back(part_on_rank(matrix, pass.tensor->rank()));
  return out;
}

// product(bias) of a matrix whose columns the ranks may share. The bias is added once, behind the sum over them.
template <class Product>
at::Tensor left(const Pass& pass, const at::Tensor& bias, const Product& product) {
  if (pass.tensor == nullptr) return product(bias);
  const at::Tensor sum = leave_split(product(at::Tensor()), pass.tensor);
  return bias.defined() ? sum + bias : sum;
}

// The leaves under one another in a fused matrix, adapted or not. `product`: the matrix, or its rounded copy. `known`: the
// result, if sampling has computed it.
at::Tensor fused(const Pass& pass, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& product,
                 const at::Tensor& bias, const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& biases,
                 const std::vector<LoraMatrix>& all_lora, const KnownResult& known = {}) {
  const at::Tensor in = entered(pass, x);
  const std::vector<LoraMatrix> lora = own_parts(pass, all_lora);
  if (!lora.empty()) return lora_linear(in, weight, product, bias, weights, biases, lora, pass.dropout(), known);
  return fused_linear(in, product, bias, weights, biases, known);
}

// The same from one matrix, which is its own leaf: o or down.
at::Tensor single(const Pass& pass, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& product,
                  const at::Tensor& all_bias, const std::vector<LoraMatrix>& all_lora, const KnownResult& known = {}) {
  const std::vector<LoraMatrix> lora = own_parts(pass, all_lora);
  return left(pass, all_bias, [&](const at::Tensor& bias) {
    const std::span<const at::Tensor> biases(&bias, bias.defined() ? 1 : 0);
    if (!lora.empty())
      return lora_linear(x, weight, product, bias, std::span(&weight, 1), biases, lora, pass.dropout(), known);
    return fused_linear(x, product, bias, {weight}, {biases.begin(), biases.end()}, known);
  });
}

at::Tensor single_plain(const Pass& pass, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& product,
                        const at::Tensor& all_bias, const std::vector<LoraMatrix>& all_lora) {
  const std::vector<LoraMatrix> lora = own_parts(pass, all_lora);
  return left(pass, all_bias, [&](const at::Tensor& bias) {
    return lora.empty() ? linear_plain(x, weight, product, bias)
                        : lora_linear_plain(x, lora.front(), bias, pass.dropout());
  });
}

at::Tensor fused_plain(const Pass& pass, const at::Tensor& x, const std::vector<at::Tensor>& weights,
                       const at::Tensor& product, const std::vector<at::Tensor>& biases,
                       const std::vector<LoraMatrix>& all_lora) {
  const at::Tensor in = entered(pass, x);
  const std::vector<LoraMatrix> lora = own_parts(pass, all_lora);
  std::vector<at::Tensor> parts;
  int64_t row = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor bias = biases.empty() ? at::Tensor() : biases[i];
    const bool is_adapted = !lora.empty() && lora[i].defined();
    parts.push_back(is_adapted ? lora_linear_plain(in, lora[i], bias, pass.dropout())
                               : linear_plain(in, weights[i], product.narrow(0, row, weights[i].size(0)), bias));
    row += weights[i].size(0);
  }
  return at::cat(parts, 1);
}

std::function<void(const at::Tensor&)> layer_callback(const Pass& pass, int64_t layer) {
  if (!pass.on_qkv) return {};
  return [&pass, layer](const at::Tensor& qkv) { pass.on_qkv(layer, qkv); };
}

// attend(qkv, shape) on the heads that this rank has.
template <class Attend>
at::Tensor on_own_heads(const Pass& pass, int64_t layer, const at::Tensor& sinks, const at::Tensor& qkv,
                        const Attend& attend) {
  const AttentionShape shape = pass.shape(layer, sinks);
  if (pass.sequence == nullptr) return attend(qkv, shape);
  const at::Tensor heads = heads_of_all_tokens(qkv, shape, pass.sequence);
  const TokenExchange& ranks = *pass.sequence->exchange;
  return tokens_of_all_heads(attend(heads, shape_on_rank(shape, ranks.rank(), ranks.size())), shape, pass.sequence);
}

// Norms, rotation and attention of queries, keys and values as one. The product behind it reads bfloat16, an adapter does not.
at::Tensor normed_attention(const Pass& pass, int64_t layer, const LayerLeaves& l, const at::Tensor& qkv,
                            const HeadBias& bias) {
  HeadNorms norms;
  if (pass.config.qk_norm) norms = {pass.scale(l.q_norm), pass.scale(l.k_norm), pass.config.rms_norm_eps};
  const bool keeps_dtype = pass.sequence != nullptr || !l.o_lora.empty();
  return on_own_heads(pass, layer, l.sinks, qkv, [&](const at::Tensor& heads, const AttentionShape& shape) {
    const at::Tensor out = pass.code.normed_attention(heads, pass.segments, pass.rope(layer), shape, norms, bias);
    return keeps_dtype ? out.to(heads.scalar_type()) : out;
  });
}

at::Tensor attention_fast(const Pass& pass, int64_t layer, const LayerWeights& w, const LayerMatrices& m,
                          const LayerLeaves& l, const at::Tensor& x) {
  const bool is_rotated = pass.takes_normed_attention(layer);
  // Whether attention adds the bias. Adapters train it by their product, and ranks that share tokens have other heads.
  const bool adds_bias =
      !pass.config.qk_norm && (pass.attend_unrotated || (is_rotated && l.qkv_lora.empty() && pass.sequence == nullptr));
  at::Tensor qkv = fused(pass, x, w.qkv_weight_QH, m.qkv_QH, adds_bias ? at::Tensor() : w.qkv_bias_Q, l.qkv_weights,
                         adds_bias ? std::vector<at::Tensor>() : l.qkv_biases, l.qkv_lora);
  if (is_rotated)
    return normed_attention(pass, layer, l, qkv, adds_bias ? HeadBias{w.qkv_bias_Q, l.qkv_biases} : HeadBias());
  if (pass.config.qk_norm) {
    qkv = pass.code.qk_norm(qkv, pass.scale(l.q_norm), pass.scale(l.k_norm), pass.config.num_heads,
                            pass.config.num_kv_heads, pass.config.rms_norm_eps);
  }
  if (pass.attend_unrotated)
    return pass.attend_unrotated(layer, qkv, pass.shape(layer, l.sinks), adds_bias ? w.qkv_bias_Q : at::Tensor());
  if (pass.attend) {
    const AttentionShape shape = pass.shape(layer, l.sinks);
    const int64_t rotated = shape.num_heads + shape.num_kv_heads;
    return pass.attend(layer, rope_rotate_plain(qkv, pass.positions, pass.rope(layer), rotated, shape.head_dim), shape);
  }
  return on_own_heads(pass, layer, l.sinks, qkv, [&](const at::Tensor& heads, const AttentionShape& shape) {
    return pass.code.rope_attention(heads, pass.segments, pass.positions, pass.rope(layer), shape,
                                    layer_callback(pass, layer));
  });
}

at::Tensor attention_plain(const Pass& pass, int64_t layer, const LayerMatrices& m, const LayerLeaves& l,
                           const at::Tensor& x) {
  at::Tensor qkv = fused_plain(pass, x, l.qkv_weights, m.qkv_QH, l.qkv_biases, l.qkv_lora);
  if (pass.config.qk_norm) {
    qkv = qk_norm_plain(qkv, pass.scale(l.q_norm), pass.scale(l.k_norm), pass.config.num_heads,
                        pass.config.num_kv_heads, pass.config.rms_norm_eps);
  }
  return on_own_heads(pass, layer, l.sinks, qkv, [&](const at::Tensor& heads, const AttentionShape& shape) {
    return rope_attention_plain(heads, pass.segments.rows_S4, pass.positions, pass.rope(layer), shape,
                                layer_callback(pass, layer));
  });
}

// A matrix of the mixture that passes read as it is, never rounded.
at::Tensor gate_product(const Pass& pass, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const std::vector<LoraMatrix>& lora, bool plain) {
  const std::span<const at::Tensor> biases(&bias, bias.defined() ? 1 : 0);
  if (lora.empty() && plain) return at::linear(x, weight, optional_bias(bias));
  if (lora.empty()) return fused_linear(x, weight.detach(), bias, {weight}, {biases.begin(), biases.end()});
  if (plain) return lora_linear_plain(x, lora.front(), bias, pass.dropout());
  return lora_linear(x, weight, weight, bias, std::span(&weight, 1), biases, lora, pass.dropout());
}

Routing route_tokens(const Pass& pass, int64_t layer, const LayerLeaves& l, const at::Tensor& x, bool plain) {
  int64_t place = 0;  // among the layers with experts
  for (int64_t i = 0; i < layer; ++i) place += pass.config.has_experts(i) ? 1 : 0;
  const ExpertLeaves& e = l.experts;
  const at::Tensor logits = gate_product(pass, x, e.router, e.router_bias, e.router_lora, plain);
  const MoeConfig& moe = pass.config.moe;
  const bool by_kernel = pass.samples() && pass.routing == nullptr && pass.code.route_to_sample != nullptr &&
                         moe.experts_per_token <= MORTISE_CUDA_MOST_EXPERTS_PER_TOKEN;
  return by_kernel ? pass.code.route_to_sample(logits, moe) : route(logits, moe, place, pass.routing.get());
}

// What mixture(x, routing, m, leaves, config) gives, if ranks may share the units of each expert. A rank then has a term of
// the gradient of a token's weights. The first one adds the biases behind the sum over units.
template <class Mixture>
at::Tensor shared_mixture(const Pass& pass, const at::Tensor& x, const Routing& routing, const LayerMatrices& m,
                          const ExpertLeaves& leaves, const Mixture& mixture) {
  if (pass.tensor == nullptr) return mixture(x, routing, m, leaves, pass.config);
  const Routing own{routing.experts_NK, entered(pass, routing.weights_NK)};
  ExpertLeaves added = leaves;
  added.gate_up_lora = part_on_rank(leaves.gate_up_lora, pass.tensor->rank());
  added.down_lora = part_on_rank(leaves.down_lora, pass.tensor->rank());
  if (leaves.down_bias.defined() && pass.tensor->rank() > 0)
    added.down_bias = at::zeros_like(leaves.down_bias.detach());
  return leave_split(mixture(entered(pass, x), own, m, added, pass.config), pass.tensor);
}

// The experts' sum, and the shared expert's output behind its gate.
at::Tensor add_shared(const Pass& pass, const LayerLeaves& l, const at::Tensor& x, const at::Tensor& sum,
                      const at::Tensor& shared, bool plain) {
  if (!shared.defined()) return sum;
  return sum +
         at::sigmoid(gate_product(pass, x, l.experts.shared_gate, {}, l.experts.shared_gate_lora, plain)) * shared;
}

// Whether nothing comes between the steps of a dense layer's MLP.
bool takes_whole_mlp(const Pass& pass, const LayerMatrices& m, const LayerLeaves& l, const at::Tensor& x) {
  const bool is_plain = l.gate_up_lora.empty() && l.down_lora.empty() && l.gate_up_biases.empty() &&
                        !l.down_bias.defined() && pass.tensor == nullptr;
  return is_plain && pass.code.gated_mlp != nullptr && at::GradMode::is_enabled() &&
         pass.code.fits_gated_mlp(x, m.gate_up_2IH, m.down_HI);
}

at::Tensor mlp_fast(const Pass& pass, int64_t layer, const LayerWeights& w, const LayerMatrices& m,
                    const LayerLeaves& l, const at::Tensor& x) {
  at::Tensor out;
  if (l.down_weight.defined() && takes_whole_mlp(pass, m, l, x)) {
    out = pass.code.gated_mlp(x, m.gate_up_2IH, m.down_HI, l.gate_up_weights, l.down_weight, pass.config.activation);
  } else if (l.down_weight.defined()) {
    const at::Tensor gate_up = fused(pass, x, w.gate_up_weight_2IH, m.gate_up_2IH, w.gate_up_bias_2I, l.gate_up_weights,
                                     l.gate_up_biases, l.gate_up_lora);
    const LayerCode& code = pass.before_product();
    out = single(pass, code.gated(gate_up, pass.config.activation), l.down_weight, m.down_HI, l.down_bias, l.down_lora);
  }
  if (!w.experts.defined()) return out;
  const Routing routing = route_tokens(pass, layer, l, x, /*plain=*/false);
  const bool by_kernels = pass.samples() && pass.code.mixture_to_sample != nullptr;
  const at::Tensor sum =
      shared_mixture(pass, x, routing, m, l.experts, by_kernels ? pass.code.mixture_to_sample : pass.code.mixture);
  return add_shared(pass, l, x, sum, out, /*plain=*/false);
}

at::Tensor mlp_plain(const Pass& pass, int64_t layer, const LayerMatrices& m, const LayerLeaves& l,
                     const at::Tensor& x) {
  at::Tensor out;
  if (l.down_weight.defined()) {
    const at::Tensor gate_up = fused_plain(pass, x, l.gate_up_weights, m.gate_up_2IH, l.gate_up_biases, l.gate_up_lora);
    out = single_plain(pass, gated_plain(gate_up, pass.config.activation), l.down_weight, m.down_HI, l.down_bias,
                       l.down_lora);
  }
  if (!l.experts.router.defined()) return out;
  const Routing routing = route_tokens(pass, layer, l, x, /*plain=*/true);
  const at::Tensor sum = shared_mixture(pass, x, routing, m, l.experts, mixture_plain);
  return add_shared(pass, l, x, sum, out, /*plain=*/true);
}

// From one block border to the next; `next_norm` is that of the layer behind, or the final one.
ResidualPair layer_fast(const Pass& pass, int64_t layer, const LayerWeights& w, const LayerMatrices& m,
                        const LayerLeaves& l, const at::Tensor& next_norm, const at::Tensor& hidden_in,
                        const at::Tensor& normed_in) {
  const double eps = pass.config.rms_norm_eps;
  const at::Tensor mixed = attention_fast(pass, layer, w, m, l, normed_in);
  at::Tensor out = single(pass, mixed, l.o_weight, m.o_HQ, l.o_bias, l.o_lora);
  if (l.attention_norm.defined()) out = pass.code.rms_norm(out, pass.scale(l.attention_norm), eps);
  const LayerCode& before_mlp = w.experts.defined() ? pass.code : pass.before_product();  // a router reads float32
  const auto [hidden, normed] = before_mlp.add_rms_norm(out, hidden_in, pass.scale(l.post_norm), eps);
  out = mlp_fast(pass, layer, w, m, l, normed);
  if (l.mlp_norm.defined()) out = pass.code.rms_norm(out, pass.scale(l.mlp_norm), eps);
  const LayerCode& before_next = layer + 1 == pass.config.num_layers ? pass.code : pass.before_product();
  return before_next.add_rms_norm(out, hidden, pass.scale(next_norm), eps);
}

// The same for backward alone: the products and attention are known.
ResidualPair layer_sampled(const Pass& pass, int64_t layer, const LayerWeights& w, const LayerMatrices& m,
                           const LayerLeaves& l, const at::Tensor& next_norm, const SampledLayer& known,
                           const ResidualPair& in) {
  const ModelConfig& config = pass.config;
  const double eps = config.rms_norm_eps;
  const auto [hidden_in, normed_in] = in;
  // A tensor of its own for each product: autograd notes in it which one made it.
  const auto unread = [&] { return KnownResult{unread_rows(hidden_in.size(0), hidden_in)}; };
  at::Tensor qkv = fused(pass, normed_in, w.qkv_weight_QH, m.qkv_QH, w.qkv_bias_Q, l.qkv_weights, l.qkv_biases,
                         l.qkv_lora, {known.qkv_NQ});
  if (config.qk_norm)
    qkv = qk_norm(qkv, pass.scale(l.q_norm), pass.scale(l.k_norm), config.num_heads, config.num_kv_heads, eps);
  const at::Tensor mixed =
      known_attention(qkv, pass.segments.rows_S4, pass.positions, pass.rope(layer), pass.shape(layer, l.sinks),
                      {known.attended_NA, known.lse_Nh, !config.qk_norm});
  at::Tensor out = single(pass, mixed, l.o_weight, m.o_HQ, l.o_bias, l.o_lora, unread());
  const auto [hidden, normed] = known_add_rms_norm(out, hidden_in, {known.mixed_NH}, pass.scale(l.post_norm), eps);
  if (takes_whole_mlp(pass, m, l, normed)) {
    out = known_gated_mlp(normed, m.gate_up_2IH, m.down_HI, l.gate_up_weights, l.down_weight, config.activation,
                          {known.gate_up_N2I});
  } else {
    const at::Tensor gate_up = fused(pass, normed, w.gate_up_weight_2IH, m.gate_up_2IH, w.gate_up_bias_2I,
                                     l.gate_up_weights, l.gate_up_biases, l.gate_up_lora, {known.gate_up_N2I});
    out = single(pass, gated(gate_up, config.activation), l.down_weight, m.down_HI, l.down_bias, l.down_lora, unread());
  }
  return known_add_rms_norm(out, hidden, {known.out_NH}, pass.scale(next_norm), eps);
}

at::Tensor forward_sampled(const Pass& pass, const DecoderWeights& weights, const DecoderLeaves& leaves,
                           const SampledPass& sampled, const at::Tensor& embedded) {
  const double eps = pass.config.rms_norm_eps;
  if (!at::GradMode::is_enabled()) return rms_norm(sampled.last_out(), pass.scale(leaves.final_norm), eps);
  ResidualPair states{embedded, rms_norm(embedded, pass.scale(leaves.layers[0].input_norm), eps)};
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const at::Tensor& next_norm = i + 1 < weights.layers.size() ? leaves.layers[i + 1].input_norm : leaves.final_norm;
    states = layer_sampled(pass, index, weights.layers[i], weights.matrices(i), leaves.layers[i], next_norm,
                           sampled.layer(index), states);
  }
  return states.second;
}

// Opens and closes the part of a layer around it, in forward and in backward.
template <class Layer>
ResidualPair with_weights(const Pass& pass, size_t index, const ResidualPair& states, const Layer& layer) {
  if (pass.gate == nullptr) return layer(states.first, states.second);
  const auto part = static_cast<int64_t>(index) + 1;
  pass.gate->open(part, GatePass::kForward);
  const ResidualPair entered = close_in_backward(pass.gate, part, states);
  const ResidualPair left = open_in_backward(pass.gate, part, layer(entered.first, entered.second));
  pass.gate->close(part, GatePass::kForward);
  return left;
}

at::Tensor forward_fast(const std::shared_ptr<const Pass>& pass, const DecoderWeights& weights,
                        const DecoderLeaves& leaves, int64_t num_recomputed, at::Tensor hidden) {
  at::Tensor normed =
      pass->before_product().rms_norm(hidden, pass->scale(leaves.layers[0].input_norm), pass->config.rms_norm_eps);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const LayerWeights& w = weights.layers[i];
    const LayerLeaves& l = leaves.layers[i];
    const at::Tensor& next_norm = i + 1 < weights.layers.size() ? leaves.layers[i + 1].input_norm : leaves.final_norm;
    const bool keeps = index >= num_recomputed || !at::GradMode::is_enabled() || !hidden.requires_grad();
    const auto layer = [pass, index, &w, m = weights.matrices(i), &l, &next_norm](const at::Tensor& h,
                                                                                  const at::Tensor& n) {
      return layer_fast(*pass, index, w, m, l, next_norm, h, n);
    };
    const auto run = [&](const at::Tensor& h, const at::Tensor& n) {
      return keeps ? layer(h, n) : recomputed(layer, h, n);
    };
    std::tie(hidden, normed) = with_weights(*pass, i, {hidden, normed}, run);
  }
  return normed;
}

at::Tensor forward_plain(const Pass& pass, const DecoderWeights& weights, const DecoderLeaves& leaves,
                         at::Tensor hidden) {
  const auto norm = [&](const at::Tensor& x, const at::Tensor& weight) {
    return rms_norm_plain(x, pass.scale(weight), pass.config.rms_norm_eps);
  };
  for (size_t i = 0; i < leaves.layers.size(); ++i) {
    const LayerLeaves& l = leaves.layers[i];
    const LayerMatrices m = weights.matrices(i);
    const auto layer = [&](const at::Tensor& in, const at::Tensor&) -> ResidualPair {
      at::Tensor out = attention_plain(pass, static_cast<int64_t>(i), m, l, norm(in, l.input_norm));
      out = single_plain(pass, out, l.o_weight, m.o_HQ, l.o_bias, l.o_lora);
      const at::Tensor mixed = in + (l.attention_norm.defined() ? norm(out, l.attention_norm) : out);
      out = mlp_plain(pass, static_cast<int64_t>(i), m, l, norm(mixed, l.post_norm));
      const at::Tensor sum = mixed + (l.mlp_norm.defined() ? norm(out, l.mlp_norm) : out);
      return {sum, sum};
    };
    hidden = with_weights(pass, i, {hidden, hidden}, layer).first;
  }
  return norm(hidden, leaves.final_norm);
}

const LayerCode& code_of(const ForwardOptions& options, const at::TensorOptions& numbers) {
  if (options.path != LayerPath::kOperators) return kCpuKernels;
  const LayerCode* const kernels = kernel_layers(numbers);
  return kernels != nullptr ? *kernels : operator_layers();
}

// Adapters and sums over ranks read float32, and in training their gradients are float32 too.
bool writes_rounded(const LayerCode& code, const DecoderWeights& weights, const DecoderLeaves& leaves,
                    const ForwardOptions& options) {
  if (weights.rounded.empty() || code.before_rounded == nullptr || options.lora_dropout) return false;
  if (options.attend_unrotated) return true;  // sampling
  const auto is_adapted = [](const LayerLeaves& l) {
    return !l.qkv_lora.empty() || !l.o_lora.empty() || !l.gate_up_lora.empty() || !l.down_lora.empty();
  };
  return options.tensor == nullptr && std::ranges::none_of(leaves.layers, is_adapted);
}

}  // namespace

at::Tensor decoder_forward(const ModelConfig& config, const DecoderWeights& weights, const DecoderLeaves& leaves,
                           const PackedBatch& batch, const ForwardOptions& options) {
  const int64_t num_positions = batch.max_position() + 1;
  const at::TensorOptions numbers = leaves.embedding.options();
  const at::ScalarType dtype = leaves.embedding.scalar_type();
  const bool by_operators = options.path == LayerPath::kOperators;
  const LayerCode& code = code_of(options, numbers);
  // By operators the table has a row for each token, in their order.
  const at::Tensor places = on_device(numbers.device(), batch.positions_N);
  const auto table_of = [&](const RopeConfig& rope) -> RopeTable {
    if (options.attend_unrotated) return {};
    if (!by_operators) return make_rope_table(rope, config.head_dim, num_positions, dtype, config.rope_length);
    const int64_t length = config.rope_length > 0 ? config.rope_length : num_positions;
    return token_rope_table(rope, config.head_dim, places, length, dtype);
  };
  const auto pass =
      std::make_shared<Pass>(Pass{config,
                                  code,
                                  options.on_qkv,
                                  options.attend,
                                  options.attend_unrotated,
                                  {},
                                  by_operators ? at::arange(batch.num_tokens(), places.options()) : places,
                                  table_of(config.rope),
                                  {},
                                  options.lora_dropout,
                                  options.routing,
                                  options.gate,
                                  !weights.rounded.empty(),
                                  writes_rounded(code, weights, leaves, options),
                                  options.sequence,
                                  options.tensor});
  // Not in braces above: after an error of a later member, gcc 12 destroys members of an inner aggregate twice.
  pass->segments.rows_S4 = segments_tensor(batch.segments);
  if (config.window_rope) pass->window_table = table_of(*config.window_rope);
  if (by_operators && !options.attend && !options.attend_unrotated)
    pass->segments.lengths = segment_lengths(batch.segments, numbers.device());
  if (code.normed_attention != nullptr && !options.attend && !options.attend_unrotated)
    pass->segments.copies = key_copies(batch.segments, numbers.device());
  if (options.gate != nullptr) options.gate->open(0, GatePass::kForward);
  const at::Tensor ids = options.sequence == nullptr ? batch.token_ids_N : options.sequence->own(batch.token_ids_N);
  SpreadRows* const spread = options.gate != nullptr ? options.gate->embedding_rows() : nullptr;
  const VocabularyShare* const share = options.vocabulary.get();
  at::Tensor hidden = share != nullptr && spread != nullptr ? split_embedding(leaves.embedding, ids, *share, *spread)
                      : share != nullptr                    ? split_embedding(leaves.embedding, ids, *share)
                      : spread != nullptr                   ? spread_embedding(leaves.embedding, ids, *spread)
                      : options.path == LayerPath::kFast
                          ? select_rows(leaves.embedding, ids)
                          : at::embedding(leaves.embedding, on_device(numbers.device(), ids));
  if (options.gate != nullptr) options.gate->close(0, GatePass::kForward);
  if (config.embedding_scale != 1.0) hidden = hidden * config.embedding_scale;
  if (options.embedding_noise) hidden = hidden + embedding_noise(*options.embedding_noise, hidden.size(1), numbers);
  if (options.sampled != nullptr) return forward_sampled(*pass, weights, leaves, *options.sampled, hidden);
  if (batch.num_tokens() > 0) {
    hidden = options.path == LayerPath::kPlain ? forward_plain(*pass, weights, leaves, hidden)
                                               : forward_fast(pass, weights, leaves, options.recomputed_layers, hidden);
  }
  if (options.gate != nullptr) options.gate->open(config.num_layers + 1, GatePass::kForward);
  return hidden;
}

}  // namespace mortise
