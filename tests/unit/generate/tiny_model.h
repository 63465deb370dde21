// Small models and requests for the engine's tests.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "generate/engine.h"

namespace mortise {

inline Model tiny_model(uint64_t seed = 3, const std::string& dtype = "float32", int64_t max_positions = 256) {
  Qwen2Shape shape;
  shape.vocab_size = 300;
  shape.hidden_size = 48;
  shape.intermediate_size = 72;
  shape.num_layers = 2;
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.initializer_range = 0.2;
  shape.max_position_embeddings = max_positions;
  auto config = make_qwen2_config(shape);
  auto model = Model::random(*std::move(config), seed, dtype);
  return *std::move(model);
}

inline std::unique_ptr<GenerateEngine> make_engine(const Model& model, EngineOptions options = {}) {
  if (options.num_threads == 0) options.num_threads = 2;
  at::set_num_threads(1);  // for the plain path: in models this small threads only wait for each other
  auto engine = GenerateEngine::create(model, options);
  if (!engine.ok()) ADD_FAILURE() << engine.error().to_string();
  return *std::move(engine);
}

inline GenerateRequest make_request(int64_t id, std::vector<int64_t> prompt, int64_t num_samples,
                                    const SamplingParams& sampling) {
  GenerateRequest request;
  request.request_id = id;
  request.prompt_ids = std::move(prompt);
  request.num_samples = num_samples;
  request.first_row_id = id * 100;
  request.seed = 17;
  request.step = 4;
  request.sampling = sampling;
  return request;
}

// (request, sample) -> sequence
using Sequences = std::map<std::pair<int64_t, int64_t>, GeneratedSequence>;

inline Sequences run_all(GenerateEngine& engine, const std::vector<GenerateRequest>& requests) {
  Sequences out;
  const auto taken = engine.submit(requests);
  EXPECT_TRUE(taken.ok()) << (taken.ok() ? "" : taken.error().to_string());
  if (!taken.ok()) return out;
  EXPECT_EQ(*taken, requests.size());
  const auto left = engine.poll(
      [&](const GeneratedSequence& sequence) {
        const auto key = std::pair{sequence.request_id, sequence.sample_index};
        EXPECT_FALSE(out.contains(key)) << "handed over twice";
        out[key] = sequence;
        return true;
      },
      std::chrono::nanoseconds(-1));
  EXPECT_TRUE(left.ok()) << (left.ok() ? "" : left.error().to_string());
  if (left.ok()) {
    EXPECT_EQ(*left, 0U);
  }
  return out;
}

}  // namespace mortise
