// The engine against published greedy continuations, against the model's own layers and head, and against itself under
// other batch sizes, threads and instruction sets.
#include "generate/engine.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "foundation/formats/json.h"
#include "model/head/log_prob_head.h"
#include "support/golden_models.h"
#include "unit/generate/tiny_model.h"

namespace mortise {
namespace {

SamplingParams sampled(int64_t max_new_tokens) {
  SamplingParams params;
  params.max_new_tokens = max_new_tokens;
  return params;
}
SamplingParams greedy(int64_t max_new_tokens) {
  SamplingParams params = sampled(max_new_tokens);
  params.temperature = 0;
  return params;
}

std::vector<GenerateRequest> three_requests(const SamplingParams& sampling) {
  std::vector<int64_t> longer;
  for (int64_t i = 0; i < 21; ++i) longer.push_back(i * 7 % 300);
  return {make_request(1, {5, 6, 7}, 4, sampling), make_request(2, longer, 3, sampling),
          make_request(3, {250}, 2, sampling)};
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, GreedyContinuations) {
  Env& env = default_env();
  const Path folder = test::golden_model(GetParam());
  auto model = Model::load(env, folder);
  ASSERT_TRUE(model.ok()) << model.error().to_string();
  // The cases of longrope have prompts on the far side of its switch.
  if (const int64_t limit = model->config().rope_switch(); limit > 0) model->set_rope_length(limit + 1);
  const auto text = env.read_file(folder / "greedy.json");
  ASSERT_TRUE(text.ok());
  const Json golden = Json::parse(*text);
  SamplingParams params = greedy(golden["max_new_tokens"].get<int64_t>());
  params.stop_ids = model->config().eos_token_ids;
  for (const char* name : {"fast", "plain", "device"}) {
    EngineOptions options;
    if (name == std::string("plain")) options.path = GeneratePath::kPlain;
    if (name == std::string("device")) {
      ASSERT_TRUE(model->move_to({.by_operators = true}).ok());
    }
    auto engine = make_engine(*model, options);
    std::vector<GenerateRequest> requests;
    for (const Json& item : golden["cases"]) {
      requests.push_back(make_request(static_cast<int64_t>(requests.size()),
                                      item["prompt_ids"].get<std::vector<int64_t>>(), 1, params));
    }
    const Sequences got = run_all(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const GeneratedSequence& sequence = got.at({static_cast<int64_t>(i), 0});
      EXPECT_EQ(sequence.ids, golden["cases"][i]["completion_ids"].get<std::vector<int64_t>>()) << engine->path_name();
      EXPECT_EQ(sequence.finish_reason == FinishReason::kStop, golden["cases"][i]["finish_reason"] == "stop");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::ValuesIn(test::golden_models("greedy.json")),
                         [](const auto& test) { return test.param; });

void expect_log_probs_of_model(const Model& model, const std::vector<GenerateRequest>& requests, const Sequences& got,
                               double tolerance = 1e-5) {
  for (const auto& [key, sequence] : got) {
    const GenerateRequest& request = requests[static_cast<size_t>(key.first - 1)];
    const PackRow row{request.prompt_ids, sequence.ids, -1};
    PackOptions options;
    options.vocab_size = model.config().vocab_size;
    const auto batch = pack_rows({&row, 1}, options);
    ASSERT_TRUE(batch.ok()) << batch.error().to_string();
    const at::NoGradGuard no_grad;
    const at::Tensor hidden = model.forward_hidden(*batch).index_select(0, batch->predict_index_R);
    const double temperature = request.sampling.greedy() ? 1.0 : request.sampling.temperature;
    const LogProbs want = head_log_prob(hidden, model.head(), batch->targets_R, temperature, false);
    ASSERT_EQ(sequence.log_prob.size(), sequence.ids.size());
    for (size_t t = 0; t < sequence.ids.size(); ++t) {
      ASSERT_NEAR(sequence.log_prob[t], want.log_prob_R.const_data_ptr<float>()[t], tolerance)
          << "request " << key.first << " sample " << key.second << " token " << t;
    }
  }
}

// Windows that begin inside the prompt's pages and later inside the row's own, caps, two rotations, sandwich norms.
TEST(Engine, LogProbsOfEveryKindOfLayerAreThoseOfTheModel) {
  for (const char* name : {"mistral_sliding", "gemma2", "gemma3_text", "phi3", "qwen3_moe", "qwen3_moe_raw",
                           "qwen3_moe_layers", "qwen2_moe", "qwen2_moe_sliding", "mixtral", "gpt_oss"}) {
    const auto model = Model::load(default_env(), Path(MORTISE_SOURCE_DIR) / "tests/golden/models" / name);
    ASSERT_TRUE(model.ok()) << model.error().to_string();
    SamplingParams params = sampled(24);
    params.ignore_eos = true;
    std::vector<GenerateRequest> requests = three_requests(params);
    for (GenerateRequest& request : requests) {
      for (int64_t& id : request.prompt_ids) id %= model->config().vocab_size;
    }
    EngineOptions options;
    const Sequences got = run_all(*make_engine(*model, options), requests);
    EXPECT_EQ(got.size(), 9U);
    expect_log_probs_of_model(*model, requests, got, 3e-5);  // their logits are large
    options.max_num_seqs = 2;
    options.num_threads = 1;
    for (const auto& [key, sequence] : run_all(*make_engine(*model, options), requests)) {
      EXPECT_EQ(sequence.ids, got.at(key).ids) << name;
      EXPECT_EQ(sequence.log_prob, got.at(key).log_prob) << name;
    }
  }
}

// Heads rotated in part; longrope on either side of its switch, which is the model's choice for all its sequences.
TEST(Engine, LongropeIsOnOneSideForAllSequences) {
  ModelConfig config = tiny_model().config();
  config.rope.type = RopeType::kLongrope;
  config.rope.partial_rotary_factor = 0.5;  // 6 of 12
  config.rope.original_max_position_embeddings = 48.0;
  config.rope.attention_factor = 1.1;
  config.rope.short_factor = {1.0, 1.1, 1.2};
  config.rope.long_factor = {1.5, 2.0, 3.0};
  Model model = *Model::random(config, 4);
  const auto requests = three_requests(sampled(20));
  std::vector<std::vector<int64_t>> ids;
  for (const int64_t length : {48, 49}) {
    model.set_rope_length(length);
    const Sequences got = run_all(*make_engine(model), requests);
    EXPECT_EQ(got.size(), 9U);
    expect_log_probs_of_model(model, requests, got);
    ids.push_back(got.at({1, 0}).ids);
  }
  EXPECT_NE(ids[0], ids[1]);
  const GenerateRequest longer = make_request(42, {5, 6}, 1, sampled(47));
  for (const int64_t length : {0, 48}) {
    model.set_rope_length(length);
    const auto refused = make_engine(model)->submit({&longer, 1});
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().to_string(), testing::HasSubstr("original_max_position_embeddings = 48"));
  }
  model.set_rope_length(49);
  EXPECT_TRUE(make_engine(model)->submit({&longer, 1}).ok());
}

TEST(Engine, RopesThatStretchTakeLongerSequences) {
  ModelConfig config = tiny_model().config();
  config.max_position_embeddings = 24;
  config.rope.type = RopeType::kLinear;
  config.rope.factor = 3.0;
  const Model model = *Model::random(config, 4);
  const auto requests = three_requests(sampled(50));  // up to 71 tokens
  const Sequences got = run_all(*make_engine(model), requests);
  EXPECT_EQ(got.size(), 9U);
  expect_log_probs_of_model(model, requests, got);
  const GenerateRequest longer = make_request(42, {5, 6}, 1, sampled(71));
  const auto refused = make_engine(model)->submit({&longer, 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().to_string(), testing::HasSubstr("exceed the model's 72 positions"));
}

TEST(Engine, LogProbsAreThoseOfTheModel) {
  const Model model = tiny_model();
  for (const double temperature : {1.0, 0.7, 0.0}) {
    SamplingParams params = sampled(40);
    params.temperature = temperature;
    auto engine = make_engine(model);
    const auto requests = three_requests(params);
    expect_log_probs_of_model(model, requests, run_all(*engine, requests));
  }
}

TEST(Engine, FiltersAndBarsLeaveTheLogProbAlone) {
  const Model model = tiny_model();
  SamplingParams params = sampled(20);
  params.top_k = 5;
  params.ignore_eos = true;
  params.stop_ids = {1, 2, 3};
  auto engine = make_engine(model);
  const auto requests = three_requests(params);
  const Sequences got = run_all(*engine, requests);
  expect_log_probs_of_model(model, requests, got);
  for (const auto& [key, sequence] : got) {
    ASSERT_EQ(sequence.filtered_log_prob.size(), sequence.ids.size());
    for (size_t t = 0; t < sequence.ids.size(); ++t) ASSERT_GE(sequence.filtered_log_prob[t], sequence.log_prob[t]);
  }
}

void expect_same_ids(const Sequences& a, const Sequences& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [key, sequence] : a) {
    ASSERT_EQ(sequence.ids, b.at(key).ids) << what << ": request " << key.first << " sample " << key.second;
    ASSERT_EQ(sequence.log_prob, b.at(key).log_prob) << what;  // bit for bit
  }
}

TEST(Engine, TokensDoNotDependOnBatchThreadsOrOrder) {
  const Model model = tiny_model();
  SamplingParams params = sampled(50);
  params.temperature = 1.3;
  auto requests = three_requests(params);
  const Sequences want = run_all(*make_engine(model), requests);
  for (const int64_t max_num_seqs : {1, 2, 5}) {
    for (const int threads : {1, 2, 3}) {
      EngineOptions options;
      options.max_num_seqs = max_num_seqs;
      options.num_threads = threads;
      options.max_batch_tokens = max_num_seqs == 2 ? 8 : 256;  // prompts cut into several passes
      expect_same_ids(want, run_all(*make_engine(model, options), requests), "slots or threads");
    }
  }
  std::swap(requests[0], requests[2]);
  expect_same_ids(want, run_all(*make_engine(model), requests), "order");
  EngineOptions small_cache;  // room for one sample at a time
  small_cache.kv_cache_bytes = 6 * KvShape{2, 2, 12}.page_bytes();
  expect_same_ids(want, run_all(*make_engine(model, small_cache), requests), "memory");
}

TEST(Engine, ManyRowsTakeTheirOwnWayThroughTheLayers) {
  const Model model = tiny_model();
  const std::vector<GenerateRequest> requests = {make_request(1, {5, 6, 7}, 70, sampled(30))};
  EngineOptions options;
  options.max_num_seqs = 3;
  options.num_threads = 1;
  expect_same_ids(run_all(*make_engine(model), requests), run_all(*make_engine(model, options), requests), "rows");
}

// Passes with enough work that the members share every matrix: a long prompt, and layers beyond a core's cache.
TEST(Engine, SharedMatricesGiveTheSame) {
  Qwen2Shape shape;
  shape.vocab_size = 300;
  shape.hidden_size = 192;
  shape.intermediate_size = 520;
  shape.num_layers = 2;
  shape.num_heads = 6;
  shape.num_kv_heads = 2;
  shape.initializer_range = 0.1;
  auto config = make_qwen2_config(shape);
  ASSERT_TRUE(config.ok());
  const auto model = Model::random(*std::move(config), 5);
  ASSERT_TRUE(model.ok());
  std::vector<int64_t> prompt;
  for (int64_t i = 0; i < 150; ++i) prompt.push_back(i * 11 % 300);
  const std::vector<GenerateRequest> requests = {make_request(1, prompt, 11, sampled(20))};
  EngineOptions alone;
  alone.num_threads = 1;
  EngineOptions many;
  many.num_threads = 3;
  const Sequences want = run_all(*make_engine(*model, alone), requests);
  expect_same_ids(want, run_all(*make_engine(*model, many), requests), "threads");
  expect_log_probs_of_model(*model, requests, want);
}

TEST(Engine, InstructionSetsAndPlainPathAgree) {
  const Model model = tiny_model();
  const auto requests = three_requests(sampled(30));
  const Sequences want = run_all(*make_engine(model), requests);
  EngineOptions plain;
  plain.path = GeneratePath::kPlain;
  std::vector<EngineOptions> others = {plain};
  for (const Isa isa : {Isa::kBase, Isa::kAvx2, Isa::kAvx512}) {
    if (find_kernels(isa) == nullptr) continue;
    others.emplace_back().isa = isa;
  }
  for (const EngineOptions& options : others) {
    auto engine = make_engine(model, options);
    const Sequences got = run_all(*engine, requests);
    int same = 0;
    for (const auto& [key, sequence] : want) same += sequence.ids == got.at(key).ids ? 1 : 0;
    // A uniform number may fall between two roundings of one boundary; never for most rows.
    EXPECT_GE(same, static_cast<int>(want.size()) - 1) << engine->path_name();
  }
}

TEST(Engine, SamplesDifferAndStepsDiffer) {
  const Model model = tiny_model();
  auto engine = make_engine(model);
  auto request = make_request(1, {5, 6, 7}, 2, sampled(30));
  const Sequences first = run_all(*engine, {request});
  EXPECT_NE(first.at({1, 0}).ids, first.at({1, 1}).ids);
  request.step = 5;
  EXPECT_NE(first.at({1, 0}).ids, run_all(*engine, {request}).at({1, 0}).ids);
  request.step = 4;
  EXPECT_EQ(first.at({1, 0}).ids, run_all(*engine, {request}).at({1, 0}).ids);
  request.first_row_id += 1;  // what was sample 1 is now sample 0
  EXPECT_EQ(first.at({1, 1}).ids, run_all(*engine, {request}).at({1, 0}).ids);
}

TEST(Engine, StopIdsAndLengths) {
  const Model model = tiny_model();
  auto engine = make_engine(model);
  const auto free_run = run_all(*engine, {make_request(1, {9}, 1, greedy(12))}).at({1, 0});
  EXPECT_EQ(free_run.ids.size(), 12U);
  EXPECT_EQ(free_run.finish_reason, FinishReason::kLength);
  SamplingParams stopped = greedy(12);
  const int64_t end = free_run.ids[4];
  const auto place = std::ranges::find(free_run.ids, end) - free_run.ids.begin();
  stopped.stop_ids = {299, end};
  const auto cut = run_all(*engine, {make_request(1, {9}, 1, stopped)}).at({1, 0});
  EXPECT_EQ(cut.finish_reason, FinishReason::kStop);
  EXPECT_EQ(cut.ids, std::vector<int64_t>(free_run.ids.begin(), free_run.ids.begin() + place + 1));
  stopped.min_new_tokens = 9;
  const auto held = run_all(*engine, {make_request(1, {9}, 1, stopped)}).at({1, 0});
  EXPECT_GT(held.ids.size(), 9U);
  for (size_t t = 0; t < 9; ++t) EXPECT_NE(held.ids[t], end);
  stopped.ignore_eos = true;
  const auto barred = run_all(*engine, {make_request(1, {9}, 1, stopped)}).at({1, 0});
  EXPECT_EQ(barred.ids.size(), 12U);
  EXPECT_EQ(std::ranges::count(barred.ids, end), 0);
}

TEST(Engine, AbortHandsOverWhatThereIs) {
  const Model model = tiny_model();
  EngineOptions options;
  options.max_num_seqs = 2;
  auto engine = make_engine(model, options);
  const auto requests = three_requests(sampled(100));
  ASSERT_TRUE(engine->submit(requests).ok());
  Sequences got;
  const auto keep = [&](const GeneratedSequence& s) {
    got[{s.request_id, s.sample_index}] = s;
    return true;
  };
  ASSERT_TRUE(engine->poll(keep, std::chrono::nanoseconds(1)).ok());  // at least one step is made
  engine->abort(1);
  auto left = engine->poll(keep, std::chrono::nanoseconds(0));
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(*left, 5U);
  ASSERT_EQ(got.size(), 4U);
  EXPECT_GT(got.at({1, 0}).ids.size(), 0U);
  EXPECT_EQ(got.at({1, 3}).ids.size(), 0U);
  for (const auto& [key, sequence] : got) EXPECT_EQ(sequence.finish_reason, FinishReason::kAbort);
  engine->abort(-1);
  left = engine->poll(keep, std::chrono::nanoseconds(0));
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(*left, 0U);
  EXPECT_EQ(got.size(), 9U);
  EXPECT_EQ(run_all(*engine, three_requests(sampled(3))).size(), 9U);  // all rows and pages came back
}

TEST(Engine, SinkMayHaveEnough) {
  const Model model = tiny_model();
  auto engine = make_engine(model);
  ASSERT_TRUE(engine->submit(three_requests(sampled(5))).ok());
  std::set<std::pair<int64_t, int64_t>> keys;
  for (int poll = 0; poll < 9; ++poll) {
    int handed = 0;
    const auto left = engine->poll(
        [&](const GeneratedSequence& s) {
          ++handed;
          keys.insert({s.request_id, s.sample_index});
          return false;
        },
        std::chrono::nanoseconds(-1));
    ASSERT_TRUE(left.ok());
    EXPECT_EQ(handed, 1);
    EXPECT_EQ(*left, static_cast<uint64_t>(8 - poll));
  }
  EXPECT_EQ(keys.size(), 9U);
}

TEST(Engine, RefusesWhatCannotRun) {
  const Model model = tiny_model();
  auto engine = make_engine(model);
  const auto expect_error = [&](const GenerateRequest& request, const char* text) {
    const auto result = engine->submit({&request, 1});
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_THAT(result.error().to_string(), testing::AllOf(testing::HasSubstr(text), testing::HasSubstr("request 42")));
  };
  expect_error(make_request(42, {5, 300}, 1, sampled(3)), "prompt token 1 is 300");
  expect_error(make_request(42, {-1}, 1, sampled(3)), "prompt token 0 is -1");
  expect_error(make_request(42, {}, 1, sampled(3)), "the prompt is empty");
  expect_error(make_request(42, {1}, 1, sampled(256)), "max_position_embeddings");
  expect_error(make_request(42, {1}, 0, sampled(3)), "num_samples");
  SamplingParams params = sampled(3);
  params.temperature = -1;
  expect_error(make_request(42, {1}, 1, params), "temperature");
  params = sampled(3);
  params.top_p = 0;
  expect_error(make_request(42, {1}, 1, params), "top_p");
  params = sampled(3);
  params.stop_ids = {300};
  expect_error(make_request(42, {1}, 1, params), "stop id 300");
  params = sampled(3);
  params.min_new_tokens = 1;
  for (int64_t id = 0; id < 300; ++id) params.stop_ids.push_back(id);
  expect_error(make_request(42, {1}, 1, params), "no token can be sampled");
  EngineOptions options;
  options.kv_cache_bytes = 1;
  engine = make_engine(model, options);
  expect_error(make_request(42, {1}, 1, sampled(100)), "KV cache");
  EXPECT_FALSE(GenerateEngine::create(tiny_model(3, "float64"), {}).ok());
}

TEST(Engine, SubmitTakesOnlySoMany) {
  const Model model = tiny_model();
  EngineOptions options;
  options.max_pending_requests = 2;
  auto engine = make_engine(model, options);
  const auto requests = three_requests(sampled(2));
  const auto taken = engine->submit(requests);
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(*taken, 2U);
}

TEST(Engine, NewWeightsAreUsed) {
  Model model = tiny_model();
  auto engine = make_engine(model);
  ASSERT_TRUE(engine->set_version(7).ok());
  const auto requests = three_requests(sampled(20));
  const Sequences before = run_all(*engine, requests);
  for (const auto& [key, s] : before) EXPECT_EQ(s.weight_version, 7);
  {
    const at::NoGradGuard no_grad;
    for (NamedParameter& p : model.parameters()) p.tensor.mul_(0.9);
  }
  ASSERT_TRUE(engine->set_version(8).ok());
  const Sequences after = run_all(*engine, requests);
  for (const auto& [key, s] : after) EXPECT_EQ(s.weight_version, 8);
  EXPECT_NE(before.at({1, 0}).log_prob, after.at({1, 0}).log_prob);
  expect_log_probs_of_model(model, requests, after);
  {
    const at::NoGradGuard no_grad;  // without a word: the copies must not go stale
    for (NamedParameter& p : model.parameters()) p.tensor.mul_(1.1);
  }
  expect_log_probs_of_model(model, requests, run_all(*engine, requests));
  engine->free_caches();
  expect_log_probs_of_model(model, requests, run_all(*engine, requests));
}

// Training and validation each have an engine: the weights of a version are packed once for both.
TEST(Engine, EnginesOnOneModelShareTheirPackedWeights) {
  Model model = tiny_model();
  EngineOptions options;
  options.shared_weights = std::make_shared<SharedWeights>();
  auto training = make_engine(model, options), validation = make_engine(model, options);
  const auto requests = three_requests(sampled(20));
  for (const int64_t version : {1, 2}) {
    {
      const at::NoGradGuard no_grad;
      for (NamedParameter& p : model.parameters()) p.tensor.mul_(0.9);
    }
    for (auto* engine : {training.get(), validation.get(), training.get()}) {
      ASSERT_TRUE(engine->set_version(version).ok());
      expect_log_probs_of_model(model, requests, run_all(*engine, requests));
    }
    EXPECT_EQ(options.shared_weights->num_packs, version);
  }
  validation->free_caches();
  expect_log_probs_of_model(model, requests, run_all(*training, requests));
}

TEST(Engine, WeightsMayNotChangeUnderHalfDoneSamples) {
  Model model = tiny_model();
  auto engine = make_engine(model);
  ASSERT_TRUE(engine->submit(three_requests(sampled(50))).ok());
  ASSERT_TRUE(engine->poll([](const GeneratedSequence&) { return true; }, std::chrono::nanoseconds(1)).ok());
  EXPECT_FALSE(engine->set_version(1).ok());
  engine->abort(-1);
  EXPECT_TRUE(engine->set_version(1).ok());
}

TEST(Engine, NonFiniteWeightsAreReported) {
  Model model = tiny_model();
  {
    const at::NoGradGuard no_grad;
    model.parameters().back().tensor.fill_(NAN);
  }
  auto engine = make_engine(model);
  ASSERT_TRUE(engine->submit(three_requests(sampled(5))).ok());
  const auto result = engine->poll([](const GeneratedSequence&) { return true; }, std::chrono::nanoseconds(-1));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kNumerics);
}

}  // namespace
}  // namespace mortise
