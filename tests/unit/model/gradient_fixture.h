// What tests of gradients start from: small models with every option of a family, rows in groups, and a loss.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

#include "model/head/log_prob_head.h"
#include "model/model.h"
#include "torch_helpers.h"

namespace mortise {

// The options of ModelConfig go by the families that have them.
enum class Family {
  kQwen2,
  kQwen3,
  kLlama,
  kMistral,
  kGemma2,
  kGemma3,
  kPhi3,
  kQwen2Moe,
  kQwen3Moe,
  kMixtral,
  kGptOss
};

// A model with every option of a family, and rows in two groups.
struct Fixture {
  Model model;
  std::vector<std::vector<int64_t>> prompts;
  std::vector<std::vector<int64_t>> responses;
  std::vector<int64_t> keys;

  std::vector<PackRow> rows() const {
    std::vector<PackRow> out;
    for (size_t i = 0; i < prompts.size(); ++i) out.push_back({prompts[i], responses[i], keys[i]});
    return out;
  }
};

inline ModelConfig small_config(Family family, bool tied) {
  ModelConfig config = *make_qwen2_config({.vocab_size = 23,
                                           .hidden_size = 16,
                                           .intermediate_size = 20,
                                           .num_layers = 2,
                                           .num_heads = 4,
                                           .num_kv_heads = 2,
                                           .tie_word_embeddings = tied,
                                           .initializer_range = 0.3});
  const bool is_gemma = family == Family::kGemma2 || family == Family::kGemma3;
  config.qkv_bias = family == Family::kQwen2 || family == Family::kLlama;
  config.qk_norm = family == Family::kQwen3 || family == Family::kGemma3;
  config.o_bias = config.mlp_bias = family == Family::kLlama;
  config.fused_projections = family == Family::kPhi3;
  if (family == Family::kMistral) config.windows = {3, 3};
  if (family == Family::kPhi3) {
    config.rope.type = RopeType::kLongrope;
    config.rope.partial_rotary_factor = 0.5;
    config.rope.original_max_position_embeddings = 5.0;
    config.rope.attention_factor = 1.2;
    config.rope.short_factor = {1.0};
    config.rope.long_factor = {2.5};
    config.rope_length = 12;  // for rows of all lengths
  }
  if (is_gemma) {
    config.norm_plus_one = config.sandwich_norm = true;
    config.activation = Activation::kGeluTanh;
    config.embedding_scale = 2.0;
    config.attention_scale = 0.7;
    config.windows = {4, 0};
  }
  if (family == Family::kGemma2) {
    config.attention_softcap = 1.5;
    config.final_softcap = 2.0;
  }
  if (family == Family::kGemma3) config.window_rope.emplace().theta = 100.0;
  if (family >= Family::kQwen2Moe) {
    config.moe = {.num_experts = 3, .experts_per_token = 2, .expert_size = 12, .is_dense = {false, false}};
    config.moe.normalizes = family != Family::kQwen2Moe;
    config.moe.mixtral_names = family == Family::kMixtral;
    if (family == Family::kQwen2Moe) config.moe.shared_size = 18;
    if (family == Family::kQwen3Moe) config.moe.is_dense[0] = true;
    config.qkv_bias = family == Family::kQwen2Moe;
    config.qk_norm = family == Family::kQwen3Moe;
  }
  if (family == Family::kGptOss) {
    config.qkv_bias = config.o_bias = config.attention_sinks = config.moe.is_gpt_oss = true;
    config.windows = {4, 0};
    config.moe.swiglu_limit = 0.8;
  }
  return config;
}

inline std::vector<int64_t> random_ids(size_t n, uint64_t seed) {
  RandomStream stream({seed, RandomPurpose::kTest, 1, 0, 0});
  std::vector<int64_t> ids;
  for (size_t i = 0; i < n; ++i) ids.push_back(static_cast<int64_t>(stream.next_below(23)));
  return ids;
}

inline Fixture make_setup(Family family, bool tied, const std::string& dtype = "float64") {
  Fixture setup{*Model::random(small_config(family, tied), 11, dtype), {}, {}, {0, 0, 0, 1, 1, -1}};
  // Biases and norms start trivial: make them count.
  const at::NoGradGuard no_grad;
  uint64_t seed = 50;
  for (NamedParameter& p : setup.model.parameters()) {
    if (p.tensor.dim() == 1 || p.name.ends_with("bias"))
      p.tensor.add_(random_tensor(p.tensor.sizes().vec(), seed++, p.tensor.scalar_type(), 0.2));
  }
  const size_t lengths[] = {3, 7, 1, 2, 5, 4};
  for (size_t i = 0; i < setup.keys.size(); ++i) {
    const int64_t key = setup.keys[i];
    setup.prompts.push_back(random_ids(key == 0 ? 5 : 3, 100 + static_cast<uint64_t>(key + 1)));
    setup.responses.push_back(random_ids(lengths[i], 200 + i));
  }
  return setup;
}

// Loss = sum of probe * log_prob + 0.1 * sum of probe * entropy; gradients land in the parameters.
struct Loss {
  double value = 0;
  at::Tensor log_prob;
};

inline Loss forward_backward(Model& model, const PackedBatch& batch, LayerPath path, bool backward = true,
                             int64_t first_target = 0, bool may_round_head = true) {
  const at::Tensor hidden = model.forward_hidden(batch, {path, {}});
  const at::Tensor rows = hidden.index_select(0, batch.predict_index_R);
  VocabularyHead head = model.head();
  head.rounds = head.rounds && may_round_head;
  const LogProbs out = head_log_prob(rows.detach().contiguous(), head, batch.targets_R, 0.9, true);
  const at::Tensor probe =
      random_tensor({64}, 77, rows.scalar_type()).narrow(0, first_target, batch.num_targets()).contiguous();
  Loss loss{(out.log_prob_R * probe + out.entropy_R * probe * 0.1).sum().item<double>(), out.log_prob_R};
  if (backward) {
    const at::Tensor d_rows = at::empty_like(rows);
    head_backward(rows.detach().contiguous(), head, batch.targets_R, 0.9, probe, probe * 0.1, d_rows,
                  model.head_grad());
    rows.backward(d_rows);
  }
  return loss;
}

// A new adapter whose trained numbers are not those of its start, as after some updates.
inline void start_adapter(Model& model, const LoraChoice& choice, double scale = 0.2) {
  const auto started = model.train_lora(choice, 5);
  ASSERT_TRUE(started.ok()) << started.error().to_string();
  const at::NoGradGuard no_grad;
  uint64_t seed = 300;
  for (const NamedParameter& p : model.trainable())
    p.tensor.add_(random_tensor(p.tensor.sizes().vec(), seed++, p.tensor.scalar_type(), scale));
  model.weights_changed();
}

inline std::vector<at::Tensor> gradients_of(const std::vector<NamedParameter>& parameters) {
  std::vector<at::Tensor> out;
  for (const NamedParameter& p : parameters)
    out.push_back(p.tensor.grad().defined() ? p.tensor.grad().clone() : at::Tensor());
  return out;
}

// A pass by one layer path, and the gradients of these parameters from it alone.
struct PathPass {
  Loss loss;
  std::vector<at::Tensor> gradients;
};
inline PathPass pass_by(LayerPath path, Model& model, const PackedBatch& batch,
                        const std::vector<NamedParameter>& parameters) {
  model.zero_grad();
  Loss loss = forward_backward(model, batch, path);
  return {std::move(loss), gradients_of(parameters)};
}

// Log-probs, and gradients of everything that is trained, by both layer paths.
inline void expect_fast_equals_plain(Fixture& setup) {
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  const auto trained = setup.model.trainable();
  const PathPass fast = pass_by(LayerPath::kFast, setup.model, batch, trained);
  const PathPass plain = pass_by(LayerPath::kPlain, setup.model, batch, trained);
  EXPECT_CLOSE(fast.loss.log_prob, plain.loss.log_prob, 1e-10);
  for (size_t i = 0; i < trained.size(); ++i) {
    EXPECT_LT(relative_l2(fast.gradients[i], plain.gradients[i]), 1e-10) << trained[i].name;
    EXPECT_GT(plain.gradients[i].abs().max().item<double>(), 0.0) << trained[i].name;
  }
}

// One element of each trained tensor whose name is `checked`: its gradient is the finite difference of the loss.
template <class Checked>
void expect_finite_differences(Fixture& setup, const Checked& checked) {
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  forward_backward(setup.model, batch, LayerPath::kFast);
  const std::vector<NamedParameter> trained = setup.model.trainable();
  const auto gradients = gradients_of(trained);
  const at::NoGradGuard no_grad;
  constexpr double kStep = 1e-5;
  for (size_t p = 0; p < trained.size(); ++p) {
    if (!checked(trained[p].name)) continue;
    const int64_t i = trained[p].tensor.numel() / 3;
    double& element = trained[p].tensor.mutable_data_ptr<double>()[i];
    const double kept = element;
    const auto loss_at = [&](double value) {
      element = value;
      setup.model.weights_changed();
      return forward_backward(setup.model, batch, LayerPath::kFast, false).value;
    };
    const double above = loss_at(kept + kStep);
    const double numeric = (above - loss_at(kept - kStep)) / (2 * kStep);
    element = kept;
    EXPECT_NEAR(gradients[p].contiguous().const_data_ptr<double>()[i], numeric, 1e-6 * std::max(1.0, std::abs(numeric)))
        << trained[p].name << "[" << i << "]";
  }
}

}  // namespace mortise
