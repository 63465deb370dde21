// Passes of a model with an adapter in training that read what the engine has kept. The engine multiplies by the merged matrices,
// as the update does, so both compute the same numbers.
#include <ATen/core/grad_mode.h>

#include "foundation/base/rng.h"
#include "support/golden_models.h"
#include "unit/generate/sampled_rows.h"

namespace mortise {
namespace {

// An adapter in the middle of a training: no matrix of it is zero.
void start(Model& model, const LoraChoice& choice) {
  const auto started = model.train_lora(choice, 5);
  ASSERT_TRUE(started.ok()) << started.error().to_string();
  const at::NoGradGuard no_grad;
  uint64_t number = 0;
  for (const NamedParameter& p : model.trainable()) {
    RandomStream stream({300, RandomPurpose::kTest, number++, 0, 0});
    float* const values = p.tensor.mutable_data_ptr<float>();
    for (int64_t i = 0; i < p.tensor.numel(); ++i) values[i] += static_cast<float>(0.05 * stream.next_normal());
  }
  model.weights_changed();
}

struct AdapterCase {
  std::string name, model;
  LoraChoice choice = {};
};

class SampledLora : public testing::TestWithParam<AdapterCase> {};

TEST_P(SampledLora, HiddenStatesAndGradientsAreThoseOfACompletePass) {
  const auto& [name, folder, choice] = GetParam();
  auto model = Model::load(default_env(), test::golden_model(folder));
  ASSERT_TRUE(model.ok()) << model.error().to_string();
  start(*model, choice);
  if (HasFailure()) return;
  for (const bool same_length : {true, false}) {
    const Rows rows = sample(*model, requests_of(model->config(), same_length));
    for (const auto& [ids, shares] : kCuts) {
      const PackedBatch packed = pack(rows, ids, shares);
      if (packed.num_targets() == 0) continue;
      ForwardOptions options;
      const PassResult want = run_pass(*model, packed, options);
      ASSERT_EQ(want.gradients.size(), model->trainable().size());
      options.sampled = pass_of(*model, packed, ids);
      ASSERT_NE(options.sampled, nullptr);
      expect_near(run_pass(*model, packed, options), want, 1e-5, name + std::to_string(ids.size()));
    }
  }
}

std::vector<AdapterCase> adapter_cases() {
  return {{"plain", "qwen2_tied"},
          {"head_norms", "qwen3_untied_v5", {.use_rslora = true}},
          {"biases", "llama_bias", {.bias = LoraBias::kAll}},
          {"fused_matrices", "phi3"},
          {"some_matrices", "qwen2_tied", {.target_modules = {"q_proj", "up_proj"}}},
          {"some_layers", "qwen2_tied", {.target_modules = {"o_proj", "down_proj"}, .layers_to_transform = {1}}},
          {"dora", "qwen2_tied", {.use_dora = true}},
          {"pissa", "qwen2_tied", {.init = LoraInit::kPissa}},
          {"embedding_as_a_whole", "qwen2_untied_sharded", {.modules_to_save = {"embed_tokens"}}}};
}

INSTANTIATE_TEST_SUITE_P(Cases, SampledLora, testing::ValuesIn(adapter_cases()),
                         [](const auto& test) { return test.param.name; });

// Merged matrices are rounded once more.
TEST(SampledLoraBfloat16, IsAsExactAsACompletePass) {
  Model model = wide_model("bfloat16"), exact = wide_model();
  start(model, {});
  start(exact, {});
  const Rows rows = sample(model, requests_of(model.config(), true));
  const PackedBatch packed = pack(rows, all_ids());
  ForwardOptions options;
  const PassResult whole = run_pass(model, packed, options), unrounded = run_pass(exact, packed, options);
  options.sampled = pass_of(model, packed, all_ids());
  ASSERT_NE(options.sampled, nullptr);
  const PassResult got = run_pass(model, packed, options);
  const double rounding = distance_of_all(whole, unrounded);
  EXPECT_GT(rounding, 5e-3);
  EXPECT_LT(distance_of_all(got, unrounded), 1.1 * rounding);
  EXPECT_LT(distance_of_all(got, whole), 0.6 * rounding);
}

}  // namespace
}  // namespace mortise
