// Ranks, as threads, that sample together: requests, what each rank gets, and comparisons with one rank.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "learn/optim/weight_shards.h"
#include "learn/update/tensor_group.h"
#include "support/thread_ranks.h"
#include "unit/generate/device_requests.h"
#include "unit/learn/layer_kinds.h"

namespace mortise {

inline constexpr int64_t kVocab = 61;

inline ModelConfig plain_layers() { return small_config(kVocab, 3); }

// Prompts of several lengths, two with a common start, filters and penalties.
inline std::vector<GenerateRequest> some_requests(int64_t vocab_size) {
  SamplingParams params;
  params.max_new_tokens = 7;
  std::vector<int64_t> start;
  for (int64_t i = 0; i < 21; ++i) start.push_back(i * 7 % vocab_size);
  std::vector<GenerateRequest> out = {make_request(1, {5, 6, 7}, 3, params), make_request(2, start, 2, params)};
  start.back() = 3;
  params.top_p = 0.9;
  params.repetition_penalty = 1.2;
  out.push_back(make_request(3, start, 2, params));
  return out;
}

inline EngineOptions options_of(GeneratePath path, int threads = 1) {
  EngineOptions options;
  options.path = path;
  options.num_threads = threads;
  return options;
}

inline void expect_near(const Sequences& want, const Sequences& got, double tolerance) {
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [key, sequence] : want) {
    const GeneratedSequence& other = got.at(key);
    ASSERT_EQ(sequence.ids, other.ids) << "request " << key.first << " sample " << key.second;
    ASSERT_EQ(sequence.filtered_log_prob.size(), other.filtered_log_prob.size());
    for (size_t i = 0; i < sequence.ids.size(); ++i)
      ASSERT_NEAR(sequence.log_prob[i], other.log_prob[i], tolerance) << "token " << i;
    for (size_t i = 0; i < sequence.filtered_log_prob.size(); ++i)
      ASSERT_NEAR(sequence.filtered_log_prob[i], other.filtered_log_prob[i], tolerance) << "token " << i;
  }
}

inline void expect_same_bits(const Sequences& want, const Sequences& got) {
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [key, sequence] : want) {
    ASSERT_EQ(sequence.ids, got.at(key).ids);
    ASSERT_EQ(sequence.log_prob, got.at(key).log_prob);
    ASSERT_EQ(sequence.filtered_log_prob, got.at(key).filtered_log_prob);
  }
}

// What each rank of one group gets.
struct SharedModel {
  ModelConfig config;
  std::string dtype = "float32";
  bool is_split = false;   // the model's layers are split for training too
  bool on_device = false;  // the code of a device computes
};
inline std::vector<Sequences> run_on_ranks(int num_ranks, const SharedModel& shared, const EngineOptions& options,
                                           const std::vector<GenerateRequest>& requests,
                                           const std::string& path_name = "") {
  std::vector<Sequences> out(static_cast<size_t>(num_ranks));
  test::on_ranks(num_ranks, [&](Communicator& communicator) {
    Model model = Model::random(shared.config, 5, shared.dtype).value();
    if (shared.on_device) move_to_device(model);
    EngineOptions own = options;
    own.ranks = std::make_shared<TensorGroup>(communicator, num_ranks);
    if (shared.is_split) model.split_layers(own.ranks);
    const auto whole = WholeWeights::gather({&model}, GatheredLayers::kOwnLayers).value();
    const auto engine = make_engine(model, own);
    if (!path_name.empty()) EXPECT_EQ(engine->path_name(), path_name);
    out[static_cast<size_t>(communicator.rank())] = run_all(*engine, requests);
  });
  return out;
}

}  // namespace mortise
