// The experts that the engine tells: those that the model's own passes take for the same tokens, on both paths, also if
// prompts begin alike. Weights in bfloat16 take others at times, and passes that take these again have its numbers.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "foundation/batch/expert_choices.h"
#include "model/head/log_prob_head.h"
#include "unit/generate/tiny_model.h"

namespace mortise {
namespace {

Model mixture_model(bool is_gpt_oss = false) {
  Qwen2Shape shape;
  shape.vocab_size = 300;
  shape.hidden_size = 48;
  shape.intermediate_size = 72;
  shape.num_layers = 3;
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.initializer_range = 0.2;
  shape.max_position_embeddings = 256;
  ModelConfig config = make_qwen2_config(shape).value();
  config.moe = {.num_experts = 12, .experts_per_token = 3, .expert_size = 24, .is_dense = {false, true, false}};
  config.moe.normalizes = true;
  config.moe.is_gpt_oss = config.attention_sinks = config.o_bias = is_gpt_oss;
  return Model::random(std::move(config), 3).value();
}

constexpr int64_t kWidth = 6;  // two layers with experts, three experts of each

std::vector<GenerateRequest> alike_requests() {
  SamplingParams params;
  params.max_new_tokens = 20;
  std::vector<int64_t> first, second;
  for (int64_t i = 0; i < 40; ++i) first.push_back(i * 7 % 300);
  second.assign(first.begin(), first.begin() + 35);
  return {make_request(1, first, 3, params), make_request(2, second, 2, params), make_request(3, {5, 6}, 2, params)};
}

// The training passes' view of a sequence.
struct Passed {
  std::vector<uint16_t> experts;  // all tokens but the last have some
  std::vector<float> log_prob;
};

Passed pass_over(const Model& model, const GenerateRequest& request, const GeneratedSequence& sequence,
                 bool takes_given) {
  const at::NoGradGuard no_grad;
  const PackRow row{request.prompt_ids, sequence.ids, -1};
  const PackedBatch batch = *pack_rows({&row, 1}, {.vocab_size = 300});
  ForwardOptions options;
  options.routing = std::make_shared<RouterPass>();
  make_room(model.config(), batch.num_tokens(), *options.routing);
  if (takes_given) {
    options.routing->given_LNK = at::empty({2, batch.num_tokens(), 3}, at::kLong);
    auto* const given = options.routing->given_LNK.mutable_data_ptr<int64_t>();
    for (int64_t n = 0; n < batch.num_tokens(); ++n) {
      for (int64_t i = 0; i < kWidth; ++i) {
        const uint16_t expert = sequence.experts[static_cast<size_t>(n * kWidth + i)];
        given[(i / 3 * batch.num_tokens() + n) * 3 + i % 3] = expert == kNoExpert ? -1 : expert;
      }
    }
  }
  const at::Tensor hidden = model.forward_hidden(batch, options).index_select(0, batch.predict_index_R);
  const LogProbs probs = head_log_prob(hidden, model.head(), batch.targets_R, 1.0, false);
  Passed out{experts_of(*options.routing, 0, batch.num_tokens()), {}};
  const at::Tensor log_prob = probs.log_prob_R.contiguous();
  out.log_prob.assign(log_prob.const_data_ptr<float>(), log_prob.const_data_ptr<float>() + log_prob.numel());
  return out;
}

const GenerateRequest& request_of(const std::vector<GenerateRequest>& requests, int64_t id) {
  return requests[static_cast<size_t>(id - 1)];
}

void expect_experts_of(const Model& model) {
  const auto requests = alike_requests();
  for (const GeneratePath path : {GeneratePath::kFast, GeneratePath::kPlain}) {
    EngineOptions options;
    options.path = path;
    options.records_experts = true;
    options.deterministic = true;
    for (const auto& [key, sequence] : run_all(*make_engine(model, options), requests)) {
      const GenerateRequest& request = request_of(requests, key.first);
      const size_t num_tokens = request.prompt_ids.size() + sequence.ids.size();
      ASSERT_EQ(sequence.experts.size(), num_tokens * kWidth);
      const Passed passed = pass_over(model, request, sequence, /*takes_given=*/false);
      ASSERT_EQ(passed.experts.size(), (num_tokens - 1) * kWidth);
      for (size_t i = 0; i < passed.experts.size(); ++i) {
        // The fast path does not compute the last layer of prompt tokens that nothing reads.
        const bool is_skipped =
            path == GeneratePath::kFast && i / kWidth + 1 < request.prompt_ids.size() && i % kWidth >= 3;
        ASSERT_EQ(sequence.experts[i], is_skipped ? kNoExpert : passed.experts[i]) << i;
      }
      EXPECT_TRUE(std::all_of(sequence.experts.end() - kWidth, sequence.experts.end(),
                              [](uint16_t expert) { return expert == kNoExpert; }));
    }
  }
}

TEST(Experts, TheEngineTellsThoseOfTheModel) { expect_experts_of(mixture_model()); }
TEST(Experts, TheEngineTellsThoseOfGptOss) { expect_experts_of(mixture_model(/*is_gpt_oss=*/true)); }

TEST(Experts, RecordingChangesNoToken) {
  const Model model = mixture_model();
  const auto requests = alike_requests();
  EngineOptions records;
  records.records_experts = true;
  const Sequences with = run_all(*make_engine(model, records), requests);
  for (const auto& [key, sequence] : run_all(*make_engine(model), requests)) {
    EXPECT_EQ(with.at(key).ids, sequence.ids);
    EXPECT_EQ(with.at(key).log_prob, sequence.log_prob);
    EXPECT_TRUE(sequence.experts.empty());
  }
  // A dense model has none.
  for (const auto& [key, sequence] : run_all(*make_engine(tiny_model(), records), requests))
    EXPECT_TRUE(sequence.experts.empty());
}

// Rounded weights choose other experts at some tokens. The whole difference of these tokens is gone with their experts.
void expect_the_samplers_numbers(const Model& model) {
  EngineOptions options;
  options.records_experts = true;
  options.weights = WeightFormat::kBfloat16;
  const auto requests = alike_requests();
  double own = 0.0, again = 0.0;
  int num_others = 0;
  for (const auto& [key, sequence] : run_all(*make_engine(model, options), requests)) {
    const GenerateRequest& request = request_of(requests, key.first);
    const Passed chosen = pass_over(model, request, sequence, false);
    const Passed given = pass_over(model, request, sequence, true);
    for (size_t i = 0; i < chosen.experts.size(); ++i)
      num_others += sequence.experts[i] != kNoExpert && sequence.experts[i] != chosen.experts[i] ? 1 : 0;
    for (size_t t = 0; t < sequence.ids.size(); ++t) {
      own = std::max(own, static_cast<double>(std::abs(chosen.log_prob[t] - sequence.log_prob[t])));
      again = std::max(again, static_cast<double>(std::abs(given.log_prob[t] - sequence.log_prob[t])));
    }
  }
  EXPECT_GT(num_others, 0) << "bfloat16 changed no choice, so nothing is tested";
  EXPECT_LT(again, own / 2);
}

TEST(Experts, TakenAgainTheyGiveTheSamplersNumbers) { expect_the_samplers_numbers(mixture_model()); }
TEST(Experts, TakenAgainThoseOfGptOssGiveTheSamplersNumbers) {
  expect_the_samplers_numbers(mixture_model(/*is_gpt_oss=*/true));
}

}  // namespace
}  // namespace mortise
