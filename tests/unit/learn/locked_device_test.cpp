// A model on a device whose memory the host cannot touch (support/locked_device.h): sampling never reads it from the host,
// never mixes tensors of host and device, and draws the tokens of CPU tensors.
#include <map>

#include "generate/engine.h"
#include "learner_fixture.h"
#include "support/locked_device.h"
#include "unit/model/gradient_fixture.h"

namespace mortise {
namespace {

ComputeDevice locked() { return {.device = test::locked_device(), .by_operators = true, .text = "locked memory"}; }
ComputeDevice as_device() { return {.by_operators = true, .text = "the CPU, as a device"}; }

// A policy whose optimizer is made where the model already lies.
struct PlacedPolicy {
  Model model;
  AdamW optimizer;
  explicit PlacedPolicy(const ComputeDevice& device, const std::string& dtype = "float32")
      : model(place(two_layer_model(29, dtype), device)), optimizer(TestPolicy::parameters(model), {}) {
    at::set_num_threads(1);
  }
  static Model place(Model model, const ComputeDevice& device) {
    const auto moved = model.move_to(device);
    EXPECT_TRUE(moved.ok()) << moved.error().to_string();
    return model;
  }
};

// Dense layers, and mixtures of experts: of both forms, one with sinks and windows.
TEST(LockedDevice, SamplingDrawsTheSameTokens) {
  const auto sample = [](const ModelConfig& config, const ComputeDevice& device) {
    const Model model = PlacedPolicy::place(*Model::random(config, 5), device);
    EngineOptions options;
    options.max_num_seqs = 3;
    auto engine = GenerateEngine::create(model, options).value();
    std::vector<GenerateRequest> requests;
    for (int64_t id = 1; id <= 3; ++id) {
      GenerateRequest& request = requests.emplace_back();
      request.request_id = id;
      request.prompt_ids = {id, 5, 7};
      request.num_samples = 2;
      request.sampling.max_new_tokens = 4 + id;
    }
    EXPECT_TRUE(engine->submit(requests).ok());
    std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> ids;
    const auto left = engine->poll(
        [&](const GeneratedSequence& one) {
          ids[{one.request_id, one.sample_index}] = one.ids;
          return true;
        },
        std::chrono::nanoseconds(-1));
    EXPECT_TRUE(left.ok()) << left.error().to_string();
    EXPECT_EQ(ids.size(), 6U);
    return ids;
  };
  for (const Family family : {Family::kQwen2, Family::kQwen3Moe, Family::kGptOss}) {
    const ModelConfig config = small_config(family, false);
    EXPECT_EQ(sample(config, locked()), sample(config, as_device()));
  }
}

TEST(LockedDevice, TheHostCannotReadItsMemory) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        const PlacedPolicy policy(locked());
        const auto* const data =
            static_cast<const volatile float*>(policy.model.parameters().front().tensor.const_data_ptr());
        static_cast<void>(*data);
      },
      "");
}

}  // namespace
}  // namespace mortise
