// Sampled rows, and passes over them with and without what sampling has kept.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>

#include "generate/decode/given_tokens.h"
#include "model/layers/select_rows.h"
#include "unit/generate/tiny_model.h"

namespace mortise {

inline constexpr int64_t kRequests = 5, kSamples = 3;

// Two prompts are equal, and two begin alike. Rows end after 1 to 24 tokens.
inline std::vector<GenerateRequest> requests_of(const ModelConfig& config, bool same_length) {
  SamplingParams sampling;
  sampling.max_new_tokens = 24;
  sampling.ignore_eos = same_length;
  if (!same_length)
    for (int64_t id = 0; id < config.vocab_size; id += 9) sampling.stop_ids.push_back(id);
  std::vector<GenerateRequest> out;
  for (int64_t i = 0; i < kRequests; ++i) {
    std::vector<int64_t> prompt;
    const int64_t length = i == 0 ? 1 : i < 3 ? 37 : 20 + 13 * (i - 3);
    for (int64_t t = 0; t < length; ++t) prompt.push_back((t * 7 + (i == 4 && t >= 32 ? 5 : 0)) % config.vocab_size);
    GenerateRequest request = make_request(i, prompt, kSamples, sampling);
    request.first_row_id = i * kSamples;
    out.push_back(std::move(request));
  }
  return out;
}

struct Rows {
  std::vector<GenerateRequest> requests;
  std::vector<std::vector<int64_t>> responses;  // by row

  [[nodiscard]] PackRow row(int64_t id) const {
    const int64_t request = id / kSamples;
    return {requests[static_cast<size_t>(request)].prompt_ids, responses[static_cast<size_t>(id)], request, id};
  }
  [[nodiscard]] std::vector<GivenRow> given() const {
    std::vector<GivenRow> out;
    for (int64_t id = 0; id < std::ssize(responses); ++id) {
      const PackRow from = row(id);
      out.push_back({from.prompt_ids, from.response_ids, id, from.group_key});
    }
    return out;
  }
};

inline void keep(Model& model, int64_t num_requests = kRequests) {
  model.keep_sampled_forward(std::make_shared<SampledForward>(model.config(), num_requests * (50 + kSamples * 23)));
}

inline Rows sample(Model& model, const std::vector<GenerateRequest>& requests, EngineOptions options = {}) {
  keep(model, std::ssize(requests));
  options.keeps_forward = true;
  SampledForward& store = *model.sampled_forward();
  store.begin(requests.front().seed, requests.front().step);
  const Sequences sequences = run_all(*make_engine(model, options), requests);
  store.end();
  Rows out{requests, {}};
  for (const auto& [key, sequence] : sequences) out.responses.push_back(sequence.ids);  // in order
  return out;
}

inline PackedBatch pack(const Rows& rows, const std::vector<int64_t>& ids, bool share_prefix = true) {
  std::vector<PackRow> list;
  for (const int64_t id : ids) list.push_back(rows.row(id));
  PackOptions options;
  options.share_prefix = share_prefix;
  options.vocab_size = 1 << 20;
  auto packed = pack_rows(list, options);
  EXPECT_TRUE(packed.ok());
  return *std::move(packed);
}

inline std::shared_ptr<const SampledPass> pass_of(const Model& model, const PackedBatch& packed,
                                                  const std::vector<int64_t>& ids) {
  auto pass = model.sampled_forward()->pass(packed, ids);
  if (!pass.ok()) ADD_FAILURE() << pass.error().to_string();
  return pass.ok() ? *pass : nullptr;
}

struct PassResult {
  at::Tensor hidden;
  std::map<std::string, at::Tensor> gradients;
};

inline at::Tensor test_gradient(int64_t rows, int64_t width) {
  at::Tensor out = at::empty({rows, width});
  float* const values = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < out.numel(); ++i) values[i] = static_cast<float>((i * 37 % 101) - 50) * 1e-3F;
  return out;
}

// Forward, and backward from gradients that are a function of the place.
inline PassResult run_pass(Model& model, const PackedBatch& packed, const ForwardOptions& options) {
  model.zero_grad();
  PassResult out;
  const at::Tensor selected = select_rows(model.forward_hidden(packed, options), packed.predict_index_R);
  out.hidden = selected.detach().clone();
  selected.backward(test_gradient(selected.size(0), selected.size(1)));
  for (const NamedParameter& p : model.trainable()) {
    if (p.tensor.grad().defined()) out.gradients[p.name] = p.tensor.grad().detach().clone();
  }
  model.zero_grad();
  return out;
}

inline double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).norm().item<double>() / std::max(1e-12, b.norm().item<double>());
}

// The relative distance of all gradients together.
inline double distance_of_all(const PassResult& got, const PassResult& want) {
  double difference = 0, size = 0;
  EXPECT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [name, gradient] : want.gradients) {
    const double own = distance(got.gradients.at(name), gradient), norm = gradient.norm().item<double>();
    difference += own * own * norm * norm;
    size += norm * norm;
  }
  return std::sqrt(difference / size);
}

inline void expect_near(const PassResult& got, const PassResult& want, double tolerance, const std::string& where) {
  EXPECT_LE(distance(got.hidden, want.hidden), tolerance) << where;
  ASSERT_EQ(got.gradients.size(), want.gradients.size()) << where;
  for (const auto& [name, gradient] : want.gradients)
    EXPECT_LE(distance(got.gradients.at(name), gradient), tolerance) << where << ": " << name;
}

// All rows, the rows of one group, one row, rows in another order, and the same without shared prompts.
inline const std::vector<std::pair<std::vector<int64_t>, bool>> kCuts = {
    {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, true},
    {{3, 4, 5}, true},
    {{7}, true},
    {{13, 2, 4, 3, 8, 14}, true},
    {{1, 3, 4, 12}, false},
};

// A layer that is too wide for the MLP in one operation, and odd sizes.
inline Model wide_model(const std::string& dtype = "float32", double epsilon = 1e-6) {
  Qwen2Shape shape;
  shape.vocab_size = 61;
  shape.hidden_size = 264;
  shape.intermediate_size = 150;
  shape.num_layers = 3;
  shape.num_heads = 6;
  shape.num_kv_heads = 2;
  shape.tie_word_embeddings = true;
  shape.initializer_range = 0.05;
  ModelConfig config = *make_qwen2_config(shape);
  config.rms_norm_eps = epsilon;
  return *Model::random(config, 5, dtype);
}

inline std::vector<int64_t> all_ids() {
  std::vector<int64_t> out;
  for (int64_t id = 0; id < kRequests * kSamples; ++id) out.push_back(id);
  return out;
}

inline void expect_same_bits(const SampledPass& got, const SampledPass& want, int64_t num_layers,
                             const std::string& where) {
  ASSERT_EQ(got.num_tokens(), want.num_tokens());
  for (int64_t i = 0; i < num_layers; ++i) {
    const SampledLayer a = got.layer(i), b = want.layer(i);
    EXPECT_TRUE(at::equal(a.qkv_NQ, b.qkv_NQ)) << where;
    EXPECT_TRUE(at::equal(a.attended_NA, b.attended_NA)) << where;
    EXPECT_TRUE(at::equal(a.lse_Nh, b.lse_Nh)) << where;
    EXPECT_TRUE(at::equal(a.mixed_NH, b.mixed_NH)) << where;
    EXPECT_TRUE(at::equal(a.gate_up_N2I, b.gate_up_N2I)) << where;
    EXPECT_TRUE(at::equal(a.out_NH, b.out_NH)) << where;
  }
}

// What the cuts add up to, from the same gradient for each hidden state.
inline PassResult gradient_of_cuts(Model& model, const Rows& rows, const std::vector<std::vector<int64_t>>& cuts,
                                   bool reads_sampled = true) {
  const at::Tensor gradient = test_gradient(1, model.config().hidden_size);
  model.zero_grad();
  for (const std::vector<int64_t>& ids : cuts) {
    const PackedBatch packed = pack(rows, ids);
    ForwardOptions options;
    if (reads_sampled) options.sampled = pass_of(model, packed, ids);
    const at::Tensor hidden = select_rows(model.forward_hidden(packed, options), packed.predict_index_R);
    hidden.backward(gradient.expand_as(hidden));
  }
  PassResult out;
  out.hidden = at::ones({1});
  for (const NamedParameter& p : model.trainable()) {
    if (p.tensor.grad().defined()) out.gradients[p.name] = p.tensor.grad().detach().clone();
  }
  return out;
}

}  // namespace mortise
