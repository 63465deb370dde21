// Sampling by the code of a device, on CPU tensors: the tokens of the native engine, and of itself under any schedule.
#include "foundation/batch/expert_choices.h"
#include "support/golden_models.h"
#include "unit/generate/device_requests.h"

namespace mortise {
namespace {

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
// passes: new sequences enter in several of them, and so does a prompt that is longer than one.
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

TEST(DeviceRunner, LongPromptsEnterInPieces) { expect_long_prompts_enter_in_pieces<OperatorNorms>("device", true); }

// Without a setting: 2,048 tokens a pass, where the CPU takes 256.
TEST(DeviceRunner, APassTakesManyTokensByDefault) {
  Model model = tiny_model(3, "float32", 512);
  SamplingParams params;
  params.max_new_tokens = 2;
  std::vector<GenerateRequest> requests;
  for (int64_t i = 0; i < 8; ++i) {
    std::vector<int64_t> prompt;
    for (int64_t t = 0; t < 280; ++t) prompt.push_back((t * 29 + i) % 300);
    requests.push_back(make_request(i, std::move(prompt), 1, params));
  }
  const Sequences want = run_all(*make_engine(model), requests);
  move_to_device(model);
  auto engine = make_engine(model);
  const OperatorNorms norms;
  expect_same(run_all(*engine, requests), want, 5e-5F, "2,240 tokens of prompts");
  EXPECT_EQ(OperatorNorms::most_rows(), 2048);
}

TEST(DeviceRunner, RunningSamplesDoNotWaitForNewPrompts) { expect_running_samples_do_not_wait<OperatorNorms>(); }

TEST(DeviceRunner, SeesNewWeights) { expect_new_weights_are_seen(); }

// The cache of a bfloat16 model is bfloat16, as its attention in training reads keys and values.
TEST(DeviceRunner, Bfloat16LogProbsAreThoseOfTraining) {
  expect_bfloat16_log_probs_of_training(tiny_model(3, "bfloat16"));
}

// The experts of prompts and completions, for routing replay.
TEST(DeviceRunner, RecordsTheExpertsOfTheNativeEngine) {
  for (const char* name : {"qwen3_moe", "gpt_oss"}) {
    auto model = Model::load(default_env(), test::golden_model(name));
    ASSERT_TRUE(model.ok()) << model.error().to_string();
    EngineOptions options;
    options.records_experts = true;
    options.max_num_seqs = 4;
    const std::vector<GenerateRequest> requests = mixed_requests(model->config().vocab_size, 12);
    const Sequences want = run_all(*make_engine(*model, options), requests);
    move_to_device(*model);
    options.max_batch_tokens = 8;  // some prompts enter in several passes
    const Sequences got = run_all(*make_engine(*model, options), requests);
    expect_same(got, want, 5e-5F, name);
    for (const auto& [key, sequence] : want) {
      EXPECT_GT(sequence.experts.size(), sequence.ids.size()) << name;
      // The native engine does not compute the last layer's experts of prompt tokens.
      const std::vector<uint16_t>& own = got.at(key).experts;
      ASSERT_EQ(own.size(), sequence.experts.size()) << name;
      for (size_t i = 0; i < own.size(); ++i) {
        if (sequence.experts[i] != kNoExpert) {
          EXPECT_EQ(own[i], sequence.experts[i]) << name << ": request " << key.first << ", " << i;
        }
      }
    }
  }
}

TEST(DeviceRunner, RefusesWhatItCannotDo) {
  Model model = tiny_model();
  move_to_device(model);
  EngineOptions rounded;
  rounded.weights = WeightFormat::kBfloat16;
  const auto engine = GenerateEngine::create(model, rounded);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().kind, ErrorKind::kConfig);
  EXPECT_NE(engine.error().to_string().find("a model on a device"), std::string::npos);
}

}  // namespace
}  // namespace mortise
