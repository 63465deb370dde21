// A mixture of experts that samples by the kernels of core/cuda: the tokens of the native engine, what a layer starts, and which
// passes these kernels take.
#include "generate/device/graphed_decode.h"
#include "unit/generate/device_kernels_fixture.h"

namespace mortise {
namespace {

// Passes of many rows have tiles of 16 rows, and of few rows those of 4.
TEST_P(DeviceDecodeTest, ExpertsOfManyRowsAreThoseOfTheNativeEngine) {
  for (const Mixture kind : {Mixture::kQwen2, Mixture::kGptOss}) {
    Model model = tiny_mixture(kind, "float32");
    SamplingParams params;
    params.max_new_tokens = 5;
    const std::vector<GenerateRequest> requests = {make_request(1, {5, 6, 7}, 3, params),
                                                   make_request(2, {9, 8}, 21, params)};
    const Sequences want = run_all(*make_engine(model), requests);
    move_to_device(model);
    for (const int64_t most : {24, 3}) {
      EngineOptions options;
      options.max_num_seqs = most;
      expect_same(run_all(*make_engine(model, options), requests), want, 5e-5F, std::to_string(most));
    }
  }
}

// Where experts have so many tokens that libtorch's products are faster, these compute them, without graphs.
TEST_F(DeviceKernelsTest, ManyTokensOfAnExpertAreByLibtorch) {
  const Model model = tiny_mixture(Mixture::kQwen3, "float32", 2);
  ModelConfig large = model.config();
  large.hidden_size = 4096, large.moe.expert_size = 14336;
  for (const bool is_rounded : {false, true}) {
    EXPECT_TRUE(GraphedDecode::serves(large, 8, is_rounded));
    EXPECT_FALSE(GraphedDecode::serves(large, 9, is_rounded));  // in the class of 16 rows
    EXPECT_TRUE(GraphedDecode::serves(model.config(), 512, is_rounded));
  }
  large.moe.experts_per_token = MORTISE_CUDA_MOST_EXPERTS_PER_TOKEN + 1;
  EXPECT_FALSE(GraphedDecode::serves(large, 1, true));
}

// With experts: norms, products of heads and attention as in a dense layer. Then the router, its choice, the pairs by expert, two
// products with the gate between them, and the sum. In a bfloat16 model the router reads float32, so that what the experts read
// is rounded.
TEST_F(DeviceKernelsTest, ALayerWithExpertsIsThirteenCalls) {
  const test::UseRecordedGraphs graphs;
  for (const char* const dtype : {"float32", "bfloat16"}) {
    std::vector<int64_t> started;
    for (const int64_t num_layers : {2, 3}) {
      Model model = tiny_mixture(Mixture::kQwen3, dtype, 5, num_layers);
      started.push_back(counts_of_a_step(model).started);
    }
    EXPECT_EQ(started[1] - started[0], dtype == std::string("bfloat16") ? 14 : 13) << dtype;
  }
}

}  // namespace
}  // namespace mortise
