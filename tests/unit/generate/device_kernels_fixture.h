// Tests of sampling by the kernels of core/cuda, which the emulator runs on CPU tensors: without graphs and with recorded ones,
// and a small model with experts.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "support/emulated_kernels.h"
#include "unit/generate/device_requests.h"

namespace mortise {

class DeviceKernelsTest : public testing::Test {
 private:
  test::EmulatedKernels emulated_;
};

// The same by graphs that are replayed, and without graphs.
class DeviceDecodeTest : public DeviceKernelsTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    test::RecordedGraphs::reset();
    if (GetParam()) graphs_.emplace();
  }
  void TearDown() override {
    const test::GraphCounts& counts = test::RecordedGraphs::counts();
    EXPECT_EQ(counts.captures > 0, GetParam());
    EXPECT_EQ(counts.replays > counts.captures, GetParam());
    EXPECT_GE(counts.warm_ups, counts.captures);
  }

 private:
  std::optional<test::UseRecordedGraphs> graphs_;
};

// Moves the model, and counts what the graph of its decoding steps starts. Recorded graphs must be in use.
inline test::GraphCounts counts_of_a_step(Model& model) {
  move_to_device(model);
  test::RecordedGraphs::reset();
  SamplingParams params;
  params.max_new_tokens = 4;
  run_all(*make_engine(model), {make_request(1, {5, 6, 7}, 2, params)});
  EXPECT_EQ(test::RecordedGraphs::counts().captures, 1);
  return test::RecordedGraphs::counts();
}

// A model whose layers have experts, two for each token: those of Qwen3, of Qwen2 with one that all tokens pass, of gpt-oss.
enum class Mixture { kQwen3, kQwen2, kGptOss };
inline Model tiny_mixture(Mixture kind, const std::string& dtype, int64_t num_experts = 5, int64_t num_layers = 2) {
  ModelConfig config = tiny_model().config();
  config.num_layers = num_layers;
  config.moe = {.num_experts = num_experts, .experts_per_token = 2, .expert_size = 40, .is_dense = {}};
  config.moe.is_dense.resize(static_cast<size_t>(num_layers), false);
  config.moe.normalizes = kind != Mixture::kQwen2;
  if (kind == Mixture::kQwen2) config.moe.shared_size = 24;
  config.moe.is_gpt_oss = config.o_bias = config.attention_sinks = kind == Mixture::kGptOss;
  return *Model::random(config, 3, dtype);
}

}  // namespace mortise
