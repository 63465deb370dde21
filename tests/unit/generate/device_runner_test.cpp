// Sampling by the code of a device, on CPU tensors: the tokens of the native engine, and of itself under any schedule.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "support/golden_models.h"
#include "unit/generate/tiny_model.h"

namespace mortise {
namespace {

void move_to_device(Model& model) { ASSERT_TRUE(model.move_to({.by_operators = true, .text = "the CPU"}).ok()); }

std::vector<GenerateRequest> mixed_requests(int64_t vocab_size, int64_t max_new_tokens) {
  std::vector<GenerateRequest> requests;
  for (int64_t i = 0; i < 6; ++i) {
    SamplingParams params;
    params.max_new_tokens = max_new_tokens - i;
    params.temperature = i % 3 == 0 ? 0.0 : 0.9;
    if (i == 2) params.top_p = 0.8;
    if (i == 4) params.repetition_penalty = 1.4;
    if (i == 5) params.stop_ids = {3, 7, 11, 19, 23, 42};
    std::vector<int64_t> prompt;
    for (int64_t t = 0; t <= i * 4; ++t) prompt.push_back((t * 13 + i) % vocab_size);
    requests.push_back(make_request(i + 1, std::move(prompt), 1 + i % 4, params));
  }
  return requests;
}

void expect_same(const Sequences& got, const Sequences& want, float tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [key, sequence] : want) {
    const GeneratedSequence& own = got.at(key);
    ASSERT_EQ(own.ids, sequence.ids) << what << ": request " << key.first << " sample " << key.second;
    EXPECT_EQ(own.finish_reason, sequence.finish_reason) << what;
    for (size_t t = 0; t < sequence.ids.size(); ++t) {
      EXPECT_NEAR(own.log_prob[t], sequence.log_prob[t], tolerance) << what;
      if (!sequence.filtered_log_prob.empty()) {
        EXPECT_NEAR(own.filtered_log_prob[t], sequence.filtered_log_prob[t], tolerance) << what;
      }
    }
  }
}

// Windows, caps, sinks, two rotations, experts; more tokens than the slots grow by at once.
TEST(DeviceRunner, TokensAreThoseOfTheNativeEngine) {
  for (const char* name :
       {"qwen2_tied", "mistral_sliding", "gemma2", "gemma3_text", "phi3", "qwen3_moe", "qwen2_moe", "gpt_oss"}) {
    auto model = Model::load(default_env(), test::golden_model(name));
    ASSERT_TRUE(model.ok()) << model.error().to_string();
    const std::vector<GenerateRequest> requests = mixed_requests(model->config().vocab_size, 20);
    const Sequences want = run_all(*make_engine(*model), requests);
    move_to_device(*model);
    auto engine = make_engine(*model);
    EXPECT_EQ(engine->path_name(), "device");
    expect_same(run_all(*engine, requests), want, 5e-5F, name);
  }
}

TEST(DeviceRunner, Float64TokensAreThoseOfThePlainPath) {
  Model model = tiny_model(3, "float64");
  const std::vector<GenerateRequest> requests = mixed_requests(300, 12);
  EngineOptions plain;
  plain.path = GeneratePath::kPlain;
  const Sequences want = run_all(*make_engine(model, plain), requests);
  move_to_device(model);
  expect_same(run_all(*make_engine(model), requests), want, 1e-6F, "float64");
}

// Few slots: samples leave while others run, groups are admitted in parts, and slots move and are used again. Small
// passes: new sequences enter in several of them, and a prompt may be longer than one.
TEST(DeviceRunner, NoScheduleChangesAToken) {
  Model model = tiny_model();
  move_to_device(model);
  const std::vector<GenerateRequest> requests = mixed_requests(300, 24);
  const Sequences want = run_all(*make_engine(model), requests);
  for (const auto& [max_num_seqs, max_batch_tokens] : {std::pair{1, 256}, {2, 256}, {3, 256}, {5, 20}, {256, 8}}) {
    EngineOptions options;
    options.max_num_seqs = max_num_seqs;
    options.max_batch_tokens = max_batch_tokens;
    auto engine = make_engine(model, options);
    for (const char* round : {"first", "again"})
      expect_same(run_all(*engine, requests), want, 5e-5F, std::to_string(max_num_seqs) + " at once, " + round);
  }
}

TEST(DeviceRunner, SeesNewWeights) {
  Model model = tiny_model();
  const Model other = tiny_model(8);
  move_to_device(model);
  const std::vector<GenerateRequest> requests = mixed_requests(300, 10);
  auto engine = make_engine(model);
  const Sequences before = run_all(*engine, requests);
  model.copy_numbers(other);
  ASSERT_TRUE(engine->set_version(1).ok());
  const Sequences after = run_all(*engine, requests);
  expect_same(after, run_all(*make_engine(other), requests), 5e-5F, "new weights");
  EXPECT_NE(after.at({2, 0}).ids, before.at({2, 0}).ids);
}

// The cache of a bfloat16 model is bfloat16, as its attention in training reads keys and values.
TEST(DeviceRunner, Bfloat16LogProbsAreThoseOfTraining) {
  Model model = tiny_model(3, "bfloat16");
  move_to_device(model);
  const std::vector<GenerateRequest> requests = mixed_requests(300, 16);
  for (const auto& [key, sequence] : run_all(*make_engine(model), requests)) {
    const GenerateRequest& request = requests[static_cast<size_t>(key.first - 1)];
    const PackRow row{request.prompt_ids, sequence.ids, -1};
    const PackedBatch batch = *pack_rows({&row, 1}, {.vocab_size = 300});
    const at::NoGradGuard no_grad;
    const at::Tensor hidden = model.forward_hidden(batch).index_select(0, batch.predict_index_R);
    const double temperature = request.sampling.greedy() ? 1.0 : request.sampling.temperature;
    const LogProbs want = head_log_prob(hidden, model.head(), batch.targets_R, temperature, false);
    for (size_t t = 0; t < sequence.ids.size(); ++t)
      EXPECT_NEAR(sequence.log_prob[t], want.log_prob_R.const_data_ptr<float>()[t], 0.03) << key.first << "/" << t;
  }
}

TEST(DeviceRunner, RefusesWhatItCannotDo) {
  Model model = tiny_model();
  move_to_device(model);
  EngineOptions rounded, recording;
  rounded.weights = WeightFormat::kBfloat16;
  recording.records_experts = true;
  for (const EngineOptions& options : {rounded, recording}) {
    const auto engine = GenerateEngine::create(model, options);
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.error().kind, ErrorKind::kConfig);
    EXPECT_NE(engine.error().to_string().find("a model on a device"), std::string::npos);
  }
}

}  // namespace
}  // namespace mortise
