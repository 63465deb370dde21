// Decoding with weights rounded to bfloat16. It equals float32 decoding with rounded matrices, bit for bit. Its
// distance from the original model is the effect of that rounding.
#include <ATen/core/grad_mode.h>
#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/head/log_prob_head.h"
#include "unit/generate/tiny_model.h"

namespace mortise {
namespace {

EngineOptions with_bfloat16() {
  EngineOptions options;
  options.weights = WeightFormat::kBfloat16;
  return options;
}

std::vector<GenerateRequest> some_requests() {
  SamplingParams params;
  params.max_new_tokens = 30;
  std::vector<int64_t> longer;
  for (int64_t i = 0; i < 40; ++i) longer.push_back(i * 7 % 300);
  return {make_request(1, {5, 6, 7}, 11, params), make_request(2, longer, 3, params)};
}

// Every matrix but the embedding, which is looked up and not multiplied with (the head of this model is its own), and
// those whose names have `but`.
void round_matrices(Model& model, const std::string& but = "embed_tokens") {
  const at::NoGradGuard no_grad;
  for (NamedParameter& parameter : model.parameters()) {
    const auto has = [&](const std::string& word) { return parameter.name.find(word) != std::string::npos; };
    if (parameter.tensor.dim() != 2 || has("embed_tokens") || has(but)) continue;
    float* const x = parameter.tensor.mutable_data_ptr<float>();
    for (int64_t i = 0; i < parameter.tensor.numel(); ++i) x[i] = static_cast<float>(c10::BFloat16(x[i]));
  }
}

TEST(Bfloat16, IsTheModelWithRoundedMatrices) {
  Model model = tiny_model();
  const auto requests = some_requests();
  for (const Isa isa : {Isa::kBase, Isa::kAvx2, Isa::kAvx512}) {
    if (find_kernels(isa) == nullptr) continue;
    EngineOptions bfloat16 = with_bfloat16();
    EngineOptions float32;
    bfloat16.isa = float32.isa = isa;
    const Sequences exact = run_all(*make_engine(model, float32), requests);
    const Sequences got = run_all(*make_engine(model, bfloat16), requests);
    Model rounded = tiny_model();
    round_matrices(rounded);
    const Sequences want = run_all(*make_engine(rounded, float32), requests);
    for (const auto& [key, sequence] : want) {
      ASSERT_EQ(got.at(key).ids, sequence.ids);
      ASSERT_EQ(got.at(key).log_prob, sequence.log_prob);
    }
    EXPECT_NE(got.at({1, 0}).log_prob, exact.at({1, 0}).log_prob) << "nothing was rounded";
  }
}

// What training/rollout_probs_diff_* shows: probabilities of the sampled tokens, the sampler's against the model's own.
TEST(Bfloat16, ProbabilitiesStayNearTheModels) {
  Model model = tiny_model();
  auto requests = some_requests();
  for (GenerateRequest& request : requests) request.sampling.temperature = 0;
  const Sequences rounded = run_all(*make_engine(model, with_bfloat16()), requests);
  const Sequences exact = run_all(*make_engine(model), requests);
  double largest = 0;
  int64_t count = 0;
  for (const auto& [key, sequence] : rounded) {
    const GeneratedSequence& other = exact.at(key);
    // As long as the tokens are equal, the log-probabilities have the same context.
    for (size_t t = 0; t < sequence.ids.size() && sequence.ids[t] == other.ids[t]; ++t, ++count) {
      const double difference = std::abs(std::exp(static_cast<double>(sequence.log_prob[t])) -
                                         std::exp(static_cast<double>(other.log_prob[t])));
      largest = std::max(largest, difference);
    }
  }
  EXPECT_GT(count, 60);
  EXPECT_GT(largest, 0.0);
  EXPECT_LT(largest, 0.05);
}

std::vector<float> training_log_probs(const Model& model, const GenerateRequest& request,
                                      const GeneratedSequence& sequence) {
  const at::NoGradGuard no_grad;
  const PackRow row{request.prompt_ids, sequence.ids, -1};
  const PackedBatch batch = *pack_rows({&row, 1}, {.vocab_size = 300});
  const at::Tensor hidden = model.forward_hidden(batch).index_select(0, batch.predict_index_R);
  const at::Tensor out = head_log_prob(hidden, model.head(), batch.targets_R, 1.0, false).log_prob_R.contiguous();
  return {out.const_data_ptr<float>(), out.const_data_ptr<float>() + out.numel()};
}

// `model` has bfloat16 matrices, `unrounded` the same ones with float32 inputs.
void expect_numbers_of_training(const Model& model, Model unrounded) {
  round_matrices(unrounded, "lm_head");
  for (const Isa isa : {Isa::kBase, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (find_kernels(isa) == nullptr) continue;
    EngineOptions options;
    options.isa = isa;
    double near = 0.0, far = 0.0;
    for (const GenerateRequest& request : some_requests()) {
      for (const auto& [key, sequence] : run_all(*make_engine(model, options), {request})) {
        const std::vector<float> own = training_log_probs(model, request, sequence);
        const std::vector<float> other = training_log_probs(unrounded, request, sequence);
        for (size_t t = 0; t < own.size(); ++t) {
          near += std::abs(own[t] - sequence.log_prob[t]);
          far += std::abs(own[t] - other[t]);
        }
      }
    }
    EXPECT_GT(far, 0.0);
    EXPECT_LT(near, far / 4) << find_kernels(isa)->name;
  }
}

// A model with bfloat16 matrices rounds the inputs of its products in sampling as in training. What is left are last bits
// of float32 sums, some of which turn a rounding over. Without the rounding, in a float32 model of the same matrices, the
// distance is many times as large.
TEST(Bfloat16, ARoundedModelSamplesWithTheNumbersOfItsTraining) {
  expect_numbers_of_training(tiny_model(3, "bfloat16"), tiny_model(3));
}

// A shared expert has a gate behind its rounded units. Every token takes all other experts.
TEST(Bfloat16, ASharedExpertSamplesWithTheNumbersOfItsTraining) {
  ModelConfig config = tiny_model(3).config();
  config.moe = {.num_experts = 2, .experts_per_token = 2, .expert_size = 24, .is_dense = {false, false}};
  config.moe.shared_size = 40;
  expect_numbers_of_training(Model::random(config, 3, "bfloat16").value(), Model::random(config, 3).value());
}

TEST(Bfloat16, EnginesOfBothFormatsMayShareTheirWeights) {
  const Model model = tiny_model();
  EngineOptions bfloat16 = with_bfloat16();
  EngineOptions float32;
  bfloat16.shared_weights = float32.shared_weights = std::make_shared<SharedWeights>();
  auto rounded = make_engine(model, bfloat16), exact = make_engine(model, float32);
  const auto requests = some_requests();
  const Sequences want_rounded = run_all(*make_engine(model, with_bfloat16()), requests);
  const Sequences want_exact = run_all(*make_engine(model), requests);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(run_all(*rounded, requests).at({2, 1}).log_prob, want_rounded.at({2, 1}).log_prob);
    EXPECT_EQ(run_all(*exact, requests).at({2, 1}).log_prob, want_exact.at({2, 1}).log_prob);
  }
}

TEST(Bfloat16, ThePlainPathHasNone) {
  EngineOptions options = with_bfloat16();
  options.path = GeneratePath::kPlain;
  const Model model = tiny_model();
  const auto engine = GenerateEngine::create(model, options);
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.error().to_string().find("rollout.dtype"), std::string::npos);
}

}  // namespace
}  // namespace mortise
