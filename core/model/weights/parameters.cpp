// See parameters.h.
#include "model/weights/parameters.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include "foundation/base/rng.h"
#include "model/device/compute_device.h"
#include "model/tensor/storage_memory.h"
#include "model/weights/names.h"
#include "model/weights/weight_units.h"

namespace mortise {
namespace {

class Builder {
 public:
  Builder(ParameterStore& store, const at::TensorOptions& numbers, bool requires_grad,
          ParameterMemory memory = ParameterMemory::kAll)
      : store_(store), numbers_(numbers), requires_grad_(requires_grad), memory_(memory) {}

  at::Tensor empty(const std::vector<int64_t>& shape) const {
    return memory_ == ParameterMemory::kAll ? at::empty(shape, numbers_) : without_memory(shape, numbers_);
  }

  // A leaf that shares the memory of `tensor`.
  at::Tensor leaf(const std::string& name, const at::Tensor& tensor) {
    at::Tensor out = tensor.detach();
    out.requires_grad_(requires_grad_);
    const bool decay = !is_bias(name) && name.find("norm") == std::string::npos;
    store_.parameters.push_back({name, out, decay});
    return out;
  }

  // Leaves for consecutive row slices of `fused`.
  std::vector<at::Tensor> slices(const std::vector<std::string>& names, const std::vector<int64_t>& rows,
                                 const at::Tensor& fused) {
    std::vector<at::Tensor> out;
    int64_t at = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      out.push_back(leaf(names[i], fused.narrow(0, at, rows[i])));
      at += rows[i];
    }
    return out;
  }

 private:
  ParameterStore& store_;
  at::TensorOptions numbers_;
  bool requires_grad_;
  ParameterMemory memory_;
};

void add_attention(Builder& builder, const ModelConfig& config, const std::string& prefix, LayerWeights& weights,
                   LayerLeaves& leaves) {
  const std::vector<int64_t> rows = config.fused_projections
                                        ? std::vector<int64_t>{config.qkv_size()}
                                        : std::vector<int64_t>{config.q_size(), config.kv_size(), config.kv_size()};
  const auto names = [&](const std::string& suffix) {
    if (config.fused_projections) return std::vector<std::string>{fmt::format("{}qkv_proj{}", prefix, suffix)};
    return std::vector<std::string>{fmt::format("{}q_proj{}", prefix, suffix),
                                    fmt::format("{}k_proj{}", prefix, suffix),
                                    fmt::format("{}v_proj{}", prefix, suffix)};
  };
  weights.qkv_weight_QH = builder.empty({config.qkv_size(), config.hidden_size});
  leaves.qkv_weights = builder.slices(names(".weight"), rows, weights.qkv_weight_QH);
  if (config.qkv_bias) {
    weights.qkv_bias_Q = builder.empty({config.qkv_size()});
    leaves.qkv_biases = builder.slices(names(".bias"), rows, weights.qkv_bias_Q);
  }
  if (config.qk_norm) {
    leaves.q_norm = builder.leaf(prefix + "q_norm.weight", weights.q_norm_D = builder.empty({config.head_dim}));
    leaves.k_norm = builder.leaf(prefix + "k_norm.weight", weights.k_norm_D = builder.empty({config.head_dim}));
  }
  if (config.attention_sinks)
    leaves.sinks = builder.leaf(prefix + "sinks", weights.sinks_A = builder.empty({config.num_heads}));
  weights.o_weight_HQ = builder.empty({config.hidden_size, config.q_size()});
  leaves.o_weight = builder.leaf(prefix + "o_proj.weight", weights.o_weight_HQ);
  if (config.o_bias) {
    leaves.o_bias = builder.leaf(prefix + "o_proj.bias", weights.o_bias_H = builder.empty({config.hidden_size}));
  }
}

void add_mlp(Builder& builder, const ModelConfig& config, const std::string& prefix, int64_t width,
             LayerWeights& weights, LayerLeaves& leaves) {
  const std::vector<int64_t> rows =
      config.fused_projections ? std::vector<int64_t>{2 * width} : std::vector<int64_t>{width, width};
  const auto names = [&](const std::string& suffix) {
    if (config.fused_projections) return std::vector<std::string>{fmt::format("{}gate_up_proj{}", prefix, suffix)};
    return std::vector<std::string>{fmt::format("{}gate_proj{}", prefix, suffix),
                                    fmt::format("{}up_proj{}", prefix, suffix)};
  };
  weights.gate_up_weight_2IH = builder.empty({2 * width, config.hidden_size});
  leaves.gate_up_weights = builder.slices(names(".weight"), rows, weights.gate_up_weight_2IH);
  weights.down_weight_HI = builder.empty({config.hidden_size, width});
  if (config.mlp_bias) {
    weights.gate_up_bias_2I = builder.empty({2 * width});
    leaves.gate_up_biases = builder.slices(names(".bias"), rows, weights.gate_up_bias_2I);
  }
  leaves.down_weight = builder.leaf(prefix + "down_proj.weight", weights.down_weight_HI);
  if (config.mlp_bias) {
    leaves.down_bias =
        builder.leaf(prefix + "down_proj.bias", weights.down_bias_H = builder.empty({config.hidden_size}));
  }
}

// gpt-oss: one tensor for all experts.
void add_stacked_experts(Builder& builder, const ModelConfig& config, const std::string& prefix, LayerWeights& weights,
                         LayerLeaves& leaves) {
  const int64_t count = config.moe.num_experts, width = config.moe.expert_size, hidden = config.hidden_size;
  ExpertWeights& all = weights.experts;
  ExpertLeaves& out = leaves.experts;
  const auto add = [&](const char* name, at::Tensor& weight, const std::vector<int64_t>& shape) {
    weight = builder.empty(shape);
    return builder.leaf(prefix + name, weight);
  };
  out.router = add("router.weight", all.router_EH, {count, hidden});
  out.router_bias = add("router.bias", all.router_bias_E, {count});
  out.gate_up = {add("experts.gate_up_proj", all.gate_up_E2IH, {count, hidden, 2 * width})};
  out.gate_up_bias = add("experts.gate_up_proj_bias", all.gate_up_bias_E2I, {count, 2 * width});
  out.down = {add("experts.down_proj", all.down_EHI, {count, width, hidden})};
  out.down_bias = add("experts.down_proj_bias", all.down_bias_EH, {count, hidden});
}

// The router, the experts in their order, and then the shared one with its gate.
void add_experts(Builder& builder, const ModelConfig& config, const std::string& layer, LayerWeights& weights,
                 LayerLeaves& leaves) {
  const MoeConfig& moe = config.moe;
  if (moe.is_gpt_oss) return add_stacked_experts(builder, config, layer + "mlp.", weights, leaves);
  const int64_t width = moe.expert_size;
  const std::string prefix = layer + (moe.mixtral_names ? "block_sparse_moe." : "mlp.");
  const char* const gate = moe.mixtral_names ? "w1" : "gate_proj";
  const char* const up = moe.mixtral_names ? "w3" : "up_proj";
  const char* const down = moe.mixtral_names ? "w2" : "down_proj";
  ExpertWeights& all = weights.experts;
  ExpertLeaves& out = leaves.experts;
  all.router_EH = builder.empty({moe.num_experts, config.hidden_size});
  all.gate_up_E2IH = builder.empty({moe.num_experts, 2 * width, config.hidden_size});
  all.down_EHI = builder.empty({moe.num_experts, config.hidden_size, width});
  out.router = builder.leaf(prefix + "gate.weight", all.router_EH);
  for (int64_t e = 0; e < moe.num_experts; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", prefix, e);
    const at::Tensor gate_up = all.gate_up_E2IH.select(0, e);
    out.gate_up.push_back(builder.leaf(fmt::format("{}{}.weight", expert, gate), gate_up.narrow(0, 0, width)));
    out.gate_up.push_back(builder.leaf(fmt::format("{}{}.weight", expert, up), gate_up.narrow(0, width, width)));
    out.down.push_back(builder.leaf(fmt::format("{}{}.weight", expert, down), all.down_EHI.select(0, e)));
  }
  if (moe.shared_size == 0) return;
  add_mlp(builder, config, prefix + "shared_expert.", moe.shared_size, weights, leaves);
  all.shared_gate_1H = builder.empty({1, config.hidden_size});
  out.shared_gate = builder.leaf(prefix + "shared_expert_gate.weight", all.shared_gate_1H);
}

// The norms but the one before the MLP, which comes behind attention in the order of parameters.
void add_norms(Builder& builder, const ModelConfig& config, const std::string& prefix, LayerWeights& weights,
               LayerLeaves& leaves) {
  const auto add = [&](const char* name, at::Tensor& weight) {
    weight = builder.empty({config.hidden_size});
    return builder.leaf(prefix + name, weight);
  };
  leaves.input_norm = add("input_layernorm.weight", weights.input_norm_H);
  if (!config.sandwich_norm) return;
  leaves.attention_norm = add("post_attention_layernorm.weight", weights.attention_norm_H);
  leaves.mlp_norm = add("post_feedforward_layernorm.weight", weights.mlp_norm_H);
}

bool is_norm(const NamedParameter& parameter) { return parameter.name.find("norm") != std::string::npos; }

}  // namespace

ParameterStore allocate_parameters(const ModelConfig& config, at::ScalarType dtype, bool requires_grad,
                                   at::Device device, ParameterMemory memory) {
  ParameterStore store;
  Builder builder(store, at::TensorOptions().dtype(dtype).device(device), requires_grad, memory);
  store.weights.embedding_VH = builder.empty({config.vocab_size, config.hidden_size});
  store.leaves.embedding = builder.leaf(kEmbeddingName, store.weights.embedding_VH);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    LayerWeights weights;
    LayerLeaves leaves;
    add_norms(builder, config, prefix, weights, leaves);
    add_attention(builder, config, prefix + "self_attn.", weights, leaves);
    leaves.post_norm = builder.leaf(
        prefix + (config.sandwich_norm ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight"),
        weights.post_norm_H = builder.empty({config.hidden_size}));
    if (config.has_experts(i)) {
      add_experts(builder, config, prefix, weights, leaves);
    } else {
      add_mlp(builder, config, prefix + "mlp.", config.intermediate_size, weights, leaves);
    }
    store.weights.layers.push_back(std::move(weights));
    store.leaves.layers.push_back(std::move(leaves));
  }
  store.weights.final_norm_H = builder.empty({config.hidden_size});
  store.leaves.final_norm = builder.leaf("model.norm.weight", store.weights.final_norm_H);
  if (config.is_classifier) {
    store.weights.head_VH = builder.empty({config.num_labels, config.hidden_size});
    store.leaves.head = builder.leaf(kScoreHead, store.weights.head_VH);
  } else if (config.tie_word_embeddings) {
    store.weights.head_VH = store.weights.embedding_VH;
    store.leaves.head = store.leaves.embedding;
  } else {
    store.weights.head_VH = builder.empty({config.vocab_size, config.hidden_size});
    store.leaves.head = builder.leaf(kHeadName, store.weights.head_VH);
  }
  for (const NamedParameter& parameter : store.parameters) {
    if (is_common(parameter) && !has_memory(parameter.tensor)) allocate_memory(parameter.tensor.storage());
  }
  return store;
}

namespace {

// The p-th of a model's parameters.
void initialize_parameter(const NamedParameter& parameter, size_t p, const ModelConfig& config, uint64_t seed) {
  at::Tensor tensor = parameter.tensor.detach();
  if (is_norm(parameter) || is_bias(parameter.name)) {
    tensor.fill_(is_norm(parameter) && !config.norm_plus_one ? 1.0 : 0.0);
    return;
  }
  const bool is_double = tensor.scalar_type() == at::kDouble;
  const int64_t columns = tensor.numel() / tensor.size(0);
  const at::Tensor host = on_host(tensor);  // the tensor itself if it is there
  at::parallel_for(0, tensor.size(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      RandomStream stream({seed, RandomPurpose::kInit, p, static_cast<uint64_t>(row), 0});
      for (int64_t i = 0; i < columns; ++i) {
        const double value = stream.next_normal() * config.initializer_range;
        if (is_double) {
          host.mutable_data_ptr<double>()[row * columns + i] = value;
        } else {
          host.mutable_data_ptr<float>()[row * columns + i] = static_cast<float>(value);
        }
      }
    }
  });
  if (!tensor.is_cpu()) tensor.copy_(host);
}

}  // namespace

void initialize_parameters(ParameterStore& store, const ModelConfig& config, uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (size_t p = 0; p < store.parameters.size(); ++p) initialize_parameter(store.parameters[p], p, config, seed);
}

void replace_head_by_score(ParameterStore& store, const ModelConfig& config, uint64_t seed) {
  const at::NoGradGuard no_grad;
  std::erase_if(store.parameters, [](const NamedParameter& p) { return p.name == kHeadName || p.name == kScoreHead; });
  const at::TensorOptions numbers = at::TensorOptions().dtype(store.leaves.embedding.scalar_type());
  Builder builder(store, numbers.device(store.leaves.embedding.device()), /*requires_grad=*/false);
  store.weights.head_VH = builder.empty({config.num_labels, config.hidden_size});
  store.leaves.head = builder.leaf(kScoreHead, store.weights.head_VH);  // the last one, as in allocate_parameters
  initialize_parameter(store.parameters.back(), store.parameters.size() - 1, config, seed);
}

}  // namespace mortise
