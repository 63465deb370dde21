// Sampling by the kernels of core/cuda, which the emulator runs on CPU tensors: the tokens of the native engine, under any
// schedule, with prompts that share pages, penalties and barred tokens.
#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "support/golden_models.h"
#include "unit/generate/char_tokenizer.h"
#include "unit/generate/device_kernels_fixture.h"

namespace mortise {
namespace {

// Sees each operator that starts while a graph is captured.
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, all) {
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&test::RecordedGraphs::note>());
}

INSTANTIATE_TEST_SUITE_P(Graphs, DeviceDecodeTest, testing::Bool(),
                         [](const auto& its) { return std::string(its.param ? "Replayed" : "None"); });

// Windows, caps, sinks, two rotations, rotations of a part, norms of heads, experts.
TEST_P(DeviceDecodeTest, TokensAreThoseOfTheNativeEngine) {
  std::vector<std::string> names = {"qwen2_tied", "phi3", "qwen3_moe", "gpt_oss"};
  if (GetParam())
    names = {"qwen2_tied", "qwen3_tied", "mistral_sliding", "gemma2",  "gemma3_text",
             "phi3",       "qwen3_moe",  "qwen2_moe",       "mixtral", "gpt_oss"};
  for (const std::string& name : names) {
    test::RecordedGraphs::reset();
    auto model = Model::load(default_env(), test::golden_model(name));
    ASSERT_TRUE(model.ok()) << model.error().to_string();
    const std::vector<GenerateRequest> requests = mixed_requests(model->config().vocab_size, GetParam() ? 9 : 7);
    const Sequences want = run_all(*make_engine(*model), requests);
    move_to_device(*model);
    auto engine = make_engine(*model);
    EXPECT_EQ(engine->path_name(), "device_kernels");
    expect_same(run_all(*engine, requests), want, 5e-5F, name);
    EXPECT_EQ(test::RecordedGraphs::counts().captures > 0, GetParam()) << name;
  }
}

// Few slots: samples leave while others run, and slots and pages are used again, also after they were freed.
TEST_P(DeviceDecodeTest, NoScheduleChangesAToken) {
  Model model = tiny_model();
  const std::vector<GenerateRequest> requests = mixed_requests(300, 9);
  const Sequences want = run_all(*make_engine(model), requests);
  move_to_device(model);
  for (const auto& [max_num_seqs, max_batch_tokens] : {std::pair{1, 256}, {3, 20}, {256, 8}}) {
    EngineOptions options;
    options.max_num_seqs = max_num_seqs;
    options.max_batch_tokens = max_batch_tokens;
    auto engine = make_engine(model, options);
    expect_same(run_all(*engine, requests), want, 5e-5F, std::to_string(max_num_seqs) + " at once");
    if (max_num_seqs != 3) continue;
    engine->free_caches();
    expect_same(run_all(*engine, requests), want, 5e-5F, "freed");
  }
}

// Prompts that end inside a page, at its end, and just behind it; completions of several pages, and more pages than there
// are at first.
TEST_P(DeviceDecodeTest, SamplesOfAGroupShareThePagesOfTheirPrompt) {
  Model model = tiny_model();
  std::vector<GenerateRequest> requests;
  for (const int64_t length : {15, 16, 17, 32, 33}) {
    SamplingParams params;
    params.max_new_tokens = 18 + length % 3;
    std::vector<int64_t> prompt;
    for (int64_t t = 0; t < length; ++t) prompt.push_back((t * 31 + length) % 300);
    requests.push_back(make_request(length, std::move(prompt), 3, params));
  }
  SamplingParams ends_soon;
  ends_soon.max_new_tokens = 200;
  for (int64_t id = 0; id < 300; id += 2) ends_soon.stop_ids.push_back(id);
  requests.push_back(make_request(1, {7, 8, 9}, 4, ends_soon));  // takes 13 pages for each sample
  const Sequences want = run_all(*make_engine(model), requests);
  move_to_device(model);
  expect_same(run_all(*make_engine(model), requests), want, 5e-5F, "shared prompts");
}

std::vector<int64_t> prompt_of(int64_t start, int64_t last) {
  std::vector<int64_t> ids;
  for (int64_t t = 0; t < start; ++t) ids.push_back((t * 29 + 7) % 300);
  ids.push_back(last);
  return ids;
}

// A common system prompt, and one prompt that is a part of it: whole pages of it are computed once, as the native engine does
// it. Later prompts find them too, until the weights change.
TEST_P(DeviceDecodeTest, PromptsThatBeginAlikeShareThePagesOfTheirStart) {
  Model model = tiny_model();
  SamplingParams params;
  params.max_new_tokens = 5;
  params.temperature = 0.9;
  std::vector<GenerateRequest> requests;
  for (int64_t i = 0; i < 3; ++i) requests.push_back(make_request(i, prompt_of(50, 200 + i), 2, params));
  requests.push_back(make_request(5, prompt_of(34, 60), 1, params));
  Sequences want;
  for (const GenerateRequest& request : requests) want.merge(run_all(*make_engine(model), {request}));
  move_to_device(model);
  constexpr int64_t kNormsOfAPass = 5, kFirst = 51, kOwn = 3 + 3 + 3, kDecoded = 7 * 4;
  for (const auto& [max_num_seqs, max_batch_tokens] : {std::pair{64, 256}, {3, 20}}) {
    EngineOptions options;
    options.max_num_seqs = max_num_seqs;
    options.max_batch_tokens = max_batch_tokens;
    auto engine = make_engine(model, options);
    int64_t num_known = 0;
    for (const char* const round : {"first", "again", "other weights", "freed"}) {
      if (round == std::string("other weights")) ASSERT_TRUE(engine->set_version(1).ok());
      if (round == std::string("freed")) engine->free_caches();
      const test::KernelNorms norms;
      expect_same(run_all(*engine, requests), want, 5e-5F, round);
      num_known += round == std::string("again") ? kOwn + 3 : kFirst + kOwn;
      EXPECT_EQ(static_cast<int64_t>(engine->num_prefilled_tokens()), num_known) << round;
      if (max_num_seqs == 3)
        break;  // samples of a group begin one after the other, and each computes the end of its prompt
      if (GetParam() || round != std::string("first")) continue;  // the norms of a graph are not counted
      EXPECT_EQ(test::KernelNorms::all_rows(), (kFirst + kOwn + kDecoded) * kNormsOfAPass);
    }
  }
}

// The prompt that others wait for leaves before all of it has entered: the next one computes the rest.
TEST_F(DeviceKernelsTest, AnAbortedPromptLeavesItsPagesToThoseThatBeginAlike) {
  Model model = tiny_model();
  SamplingParams params;
  params.max_new_tokens = 6;
  std::vector<GenerateRequest> requests;
  for (int64_t i = 0; i < 3; ++i) requests.push_back(make_request(i, prompt_of(60, 200 + i), 2, params));
  const Sequences want = run_all(*make_engine(model), {requests[1], requests[2]});
  move_to_device(model);
  EngineOptions options;
  options.max_batch_tokens = 20;
  for (int num_steps = 1; num_steps < 4; ++num_steps) {
    auto engine = make_engine(model, options);
    ASSERT_TRUE(engine->submit(requests).ok());
    Sequences got;
    const auto keep = [&](const GeneratedSequence& sequence) {
      if (sequence.request_id > 0) got[{sequence.request_id, sequence.sample_index}] = sequence;
      return true;
    };
    for (int i = 0; i < num_steps; ++i) ASSERT_TRUE(engine->poll(keep, std::chrono::nanoseconds(1)).ok());
    engine->abort(0);
    ASSERT_EQ(*engine->poll(keep, std::chrono::nanoseconds(-1)), 0U);
    expect_same(got, want, 5e-5F, std::to_string(num_steps) + " steps");
  }
}

TEST_F(DeviceKernelsTest, LongPromptsEnterInPieces) {
  expect_long_prompts_enter_in_pieces<test::KernelNorms>("device_kernels", false);
}

TEST_F(DeviceKernelsTest, RunningSamplesDoNotWaitForNewPrompts) {
  expect_running_samples_do_not_wait<test::KernelNorms>();
}

// No row needs the host, so each step starts before its tokens are read. Samples end by an id that the host finds, at
// their length, or because they are aborted; others take their slots, and the whole work begins again.
TEST_P(DeviceDecodeTest, AStepAheadGivesNoTokenOfASampleThatEnded) {
  Model model = tiny_model();
  std::vector<GenerateRequest> requests;
  for (int64_t i = 1; i <= 7; ++i) {
    SamplingParams params;
    params.max_new_tokens = 1 + i * 3;
    params.temperature = 0.9;
    if (i % 2 == 0) params.stop_ids = {3, 7, 11, 19, 23, 42, 55, 81, 120, 177, 204, 256};
    requests.push_back(make_request(i, {i, 20, 30}, 2, params));
  }
  const Sequences want = run_all(*make_engine(model), requests);
  move_to_device(model);
  EngineOptions options;
  options.max_num_seqs = 3;
  auto engine = make_engine(model, options);
  for (const int64_t aborted : {4, -1}) {
    Sequences got;
    const auto keep = [&](const GeneratedSequence& sequence) {
      got[{sequence.request_id, sequence.sample_index}] = sequence;
      return true;
    };
    ASSERT_EQ(engine->submit(requests).value(), requests.size());
    while (!got.contains({3, 1})) ASSERT_TRUE(engine->poll(keep, std::chrono::nanoseconds(1)).ok());
    engine->abort(aborted);
    ASSERT_EQ(engine->poll(keep, std::chrono::nanoseconds(-1)).value(), 0U);
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [key, sequence] : got) {
      const std::vector<int64_t>& all = want.at(key).ids;
      ASSERT_LE(sequence.ids.size(), all.size());
      EXPECT_TRUE(std::equal(sequence.ids.begin(), sequence.ids.end(), all.begin())) << key.first;
      if (sequence.finish_reason == FinishReason::kAbort) continue;
      EXPECT_EQ(sequence.ids, all) << key.first;
    }
    EXPECT_EQ(got.at({4, 1}).finish_reason, FinishReason::kAbort);
    EXPECT_EQ(got.at({7, 1}).finish_reason == FinishReason::kAbort, aborted == -1);
  }
  expect_same(run_all(*engine, requests), want, 5e-5F, "after what was aborted");
}

TEST_F(DeviceKernelsTest, FilteredLogProbsAndTopLogProbsAreThoseOfTheNativeEngine) {
  Model model = tiny_model();
  std::vector<GenerateRequest> requests;
  for (int64_t i = 1; i <= 6; ++i) {
    SamplingParams params;
    params.max_new_tokens = 8;
    params.temperature = 1.1;
    if (i == 1) params.top_k = 7;
    if (i == 2) params.top_p = 0.6;
    if (i == 3) params.min_p = 0.1;
    if (i == 4) params.typical_p = 0.7;
    if (i == 5) params.bad_words = {{5}, {9, 11}};
    if (i == 6) params.top_k = 20, params.top_p = 0.9;
    requests.push_back(make_request(i, {i, 20, 30}, 3, params));
    if (i == 6) requests.back().num_top_log_probs = 3;
  }
  const Sequences want = run_all(*make_engine(model), requests);
  move_to_device(model);
  const Sequences got = run_all(*make_engine(model), requests);
  expect_same(got, want, 5e-5F, "filters");
  EXPECT_FALSE(want.at({2, 0}).filtered_log_prob.empty());
  for (int64_t sample = 0; sample < 3; ++sample) {
    const auto& top = got.at({6, sample}).top;
    const auto& expected = want.at({6, sample}).top;
    ASSERT_EQ(top.size(), expected.size());
    for (size_t i = 0; i < top.size(); ++i) EXPECT_EQ(top[i].id, expected[i].id);
  }
}

void expect_same_top(const Sequences& got, const Sequences& want) {
  for (const auto& [key, sequence] : want) {
    const std::vector<TokenLogProb>& top = got.at(key).top;
    ASSERT_EQ(top.size(), sequence.top.size()) << key.first;
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(top[i].id, sequence.top[i].id) << key.first;
      EXPECT_NEAR(top[i].log_prob, sequence.top[i].log_prob, 5e-5F);
    }
  }
}

// Penalties and barred tokens look at tokens that the host has not read yet. Few slots: the history of a sample that has left
// must not stay.
TEST_P(DeviceDecodeTest, PenaltiesAndBarredTokensAreThoseOfTheNativeEngine) {
  Model model = tiny_model();
  auto requests = [] {
    std::vector<GenerateRequest> out;
    for (int64_t i = 1; i <= 9; ++i) {
      SamplingParams params;
      params.max_new_tokens = 6 + i;
      params.temperature = i % 4 == 0 ? 0.0 : 0.7;
      if (i % 3 == 1) params.repetition_penalty = 1.5;
      if (i % 3 == 2) params.presence_penalty = 0.8, params.frequency_penalty = -0.9;
      if (i % 2 == 0) params.stop_ids = {3, 7, 11, 19, 23, 42, 55, 81, 120, 177, 204, 256};
      if (i == 4 || i == 8) params.ignore_eos = true;
      if (i == 6) params.min_new_tokens = 9;
      if (i >= 7) params.typical_p = 0.8;
      out.push_back(make_request(i, {i, 20, 30}, 2, params));
      out.back().num_top_log_probs = i % 3;
    }
    return out;
  }();
  const Sequences free = run_all(*make_engine(model), requests);
  for (GenerateRequest& request : requests) {  // what they would say may not come
    const std::vector<int64_t>& ids = free.at({request.request_id, 0}).ids;
    if (request.request_id % 2 == 1 && ids.size() >= 6)
      request.sampling.bad_words = {{ids[0]}, {30, ids[1]}, {ids[2], ids[3]}, {ids[3], ids[4], ids[5]}, {1, 2, 3, 4}};
  }
  const Sequences want = run_all(*make_engine(model), requests);
  EXPECT_NE(want.at({5, 0}).ids, free.at({5, 0}).ids);
  move_to_device(model);
  EngineOptions options;
  for (const int64_t max_num_seqs : {3, 256}) {
    options.max_num_seqs = max_num_seqs;
    const Sequences got = run_all(*make_engine(model, options), requests);
    expect_same(got, want, 5e-5F, "edits");
    expect_same_top(got, want);
  }
}

// Patterns next to requests without one, with bars that they win over, and with few slots.
TEST_F(DeviceKernelsTest, PatternsAreThoseOfTheHost) {
  const test::UseRecordedGraphs graphs;
  const Tokenizer tokenizer = char_tokenizer();
  Model model = tiny_model();
  std::vector<GenerateRequest> requests;
  for (int64_t i = 1; i < 9; ++i) {
    SamplingParams params = i % 4 == 0 ? SamplingParams() : guided(i % 2 == 0 ? "[a-f]{2,9}" : R"((\d\d,){1,4}\d\d)");
    params.max_new_tokens = 14;
    params.stop_ids = {1};
    params.temperature = i == 1 ? 0.0 : 1.1;
    if (i == 2) params.repetition_penalty = 1.4;
    if (i == 3) params.top_k = 3;
    if (i == 5) params.min_new_tokens = 13;
    if (i == 6) params.bad_words = {{67}, {68, 69}};
    requests.push_back(make_request(i, {i, 20, 30}, 2, params));
    requests.back().num_top_log_probs = i % 3;
  }
  EngineOptions options;
  options.tokenizer = &tokenizer;
  const Sequences want = run_all(*make_engine(model, options), requests);
  move_to_device(model);
  for (const int64_t max_num_seqs : {3, 256}) {
    test::RecordedGraphs::reset();
    options.max_num_seqs = max_num_seqs;
    const Sequences got = run_all(*make_engine(model, options), requests);
    expect_same(got, want, 5e-5F, "patterns");
    expect_same_top(got, want);
    EXPECT_GT(test::RecordedGraphs::counts().replays, 0);
  }
}

// Three rows and a padding one. How many tokens each row wants may change between two passes of a graph. Long lists have none.
TEST_F(DeviceKernelsTest, GraphsListTheLikeliestTokens) {
  const test::UseRecordedGraphs graphs;
  const test::GraphCounts& counts = test::RecordedGraphs::counts();
  Model model = tiny_model(), on_device = tiny_model();
  move_to_device(on_device);
  for (const bool has_edits : {false, true}) {
    auto engine = make_engine(on_device);
    const auto sampled = [&](const std::vector<int64_t>& num_top) {
      std::vector<GenerateRequest> requests;
      for (size_t i = 0; i < num_top.size(); ++i) {
        SamplingParams params;
        params.max_new_tokens = 8;
        params.ignore_eos = true;
        if (has_edits) params.repetition_penalty = 1.3;
        requests.push_back(make_request(static_cast<int64_t>(i) + 1, {5 + static_cast<int64_t>(i), 20, 30}, 1, params));
        requests.back().num_top_log_probs = num_top[i];
      }
      const Sequences want = run_all(*make_engine(model), requests);
      test::RecordedGraphs::reset();
      const Sequences got = run_all(*engine, requests);
      expect_same(got, want, 5e-5F, "top");
      expect_same_top(got, want);
    };
    sampled({2, 0, 3});
    EXPECT_GT(counts.captures, 0);
    EXPECT_GT(counts.replays, 0);
    sampled({0, 4, 1});
    EXPECT_EQ(counts.warm_ups + counts.captures, 0) << "lists of three and of four use the same graph";
    EXPECT_GT(counts.replays, 0);
    sampled({0, 0, 0});
    EXPECT_GT(counts.captures, 0);
    sampled({1, 65, 0});
    EXPECT_EQ(counts.warm_ups + counts.captures + counts.replays, 0);
  }
}

// Gives a matrix other memory with the same numbers, and spoils the old one. Returns it: nobody else may get it.
at::DataPtr move_memory(const at::Tensor& matrix) {
  c10::Storage own = matrix.storage(), other = matrix.detach().clone().storage();
  at::DataPtr before = own.set_data_ptr(other.set_data_ptr({}));
  std::memset(before.get(), 0xFF, own.nbytes());
  return before;
}

// An update that writes weights where they are keeps the graphs. A matrix that passes read and that moves does not.
TEST_F(DeviceKernelsTest, GraphsStayUntilWeightsMove) {
  const test::UseRecordedGraphs graphs;
  const test::GraphCounts& counts = test::RecordedGraphs::counts();
  for (const char* const dtype : {"float32", "bfloat16"}) {
    Model model = tiny_model(3, dtype), other = tiny_model(8, dtype);
    move_to_device(model);
    move_to_device(other);
    std::vector<GenerateRequest> requests = mixed_requests(300, 6);
    requests.resize(2);
    const Sequences want = run_all(*make_engine(other), requests);
    auto engine = make_engine(model);
    for (int round = 0; round < 2; ++round) EXPECT_NE(run_all(*engine, requests).at({2, 0}).ids, want.at({2, 0}).ids);
    test::RecordedGraphs::reset();
    model.copy_numbers(other);
    model.weights_changed();
    ASSERT_TRUE(engine->set_version(1).ok());
    expect_same(run_all(*engine, requests), want, 1e-6F, dtype);
    EXPECT_EQ(counts.warm_ups + counts.captures, 0) << dtype;
    EXPECT_GT(counts.replays, 0) << dtype;
    const at::DataPtr before = move_memory(model.weights().matrices(1).down_HI);
    expect_same(run_all(*engine, requests), want, 1e-6F, dtype);
    EXPECT_GT(counts.warm_ups, 0) << dtype;
  }
}

// What a GPU starts for a layer of a decoding step: two norms, four products, bias with rotation and pages, attention (two
// kernels by one call), the gate. Nothing rounds, adds or copies between them.
TEST_F(DeviceKernelsTest, ALayerOfAStepIsNineCalls) {
  const test::UseRecordedGraphs graphs;
  for (const char* const dtype : {"float32", "bfloat16"}) {
    std::vector<int64_t> started, widened;
    for (const int64_t num_layers : {2, 3}) {
      ModelConfig config = tiny_model().config();
      config.num_layers = num_layers;
      Model model = *Model::random(config, 3, dtype);
      ASSERT_TRUE(model.weights().layers[0].qkv_bias_Q.defined());
      const test::GraphCounts counts = counts_of_a_step(model);
      started.push_back(counts.started);
      widened.push_back(counts.widened);
    }
    EXPECT_EQ(started[1] - started[0], 9) << dtype;
    EXPECT_EQ(widened[1] - widened[0], dtype == std::string("bfloat16") ? 8 : 0) << "two matrices of each product";
  }
}

TEST_F(DeviceKernelsTest, EagerSamplingMakesNoGraphs) {
  const test::UseRecordedGraphs graphs;
  Model model = tiny_model();
  std::vector<GenerateRequest> requests = mixed_requests(300, 5);
  requests.resize(2);
  const Sequences want = run_all(*make_engine(model), requests);
  move_to_device(model);
  EngineOptions options;
  options.has_graphs = false;
  expect_same(run_all(*make_engine(model, options), requests), want, 5e-5F, "eager");
  EXPECT_EQ(test::RecordedGraphs::counts().warm_ups, 0);
}

TEST_P(DeviceDecodeTest, SeesNewWeights) { expect_new_weights_are_seen(); }

// Pages of a bfloat16 model are bfloat16, as attention in training reads keys and values.
TEST_P(DeviceDecodeTest, Bfloat16LogProbsAreThoseOfTraining) {
  expect_bfloat16_log_probs_of_training(tiny_model(3, "bfloat16"));
  for (const Mixture kind : {Mixture::kQwen2, Mixture::kQwen3, Mixture::kGptOss})
    expect_bfloat16_log_probs_of_training(tiny_mixture(kind, "bfloat16"));
}

// More than 16 rows and more than one split of attention: graphs of several sizes, padding, and memory that moves.
TEST_P(DeviceDecodeTest, SizesOfEveryClassGiveTheTokensOfTheNativeEngine) {
  Model model = tiny_model(3, "float32", 512);
  std::vector<GenerateRequest> requests;
  for (int64_t i = 1; i <= 3; ++i) {
    SamplingParams params;
    params.max_new_tokens = i == 1 ? 4 : 9;
    params.temperature = 0.9;
    std::vector<int64_t> prompt;
    for (int64_t t = 0; t < (i == 3 ? 250 : 10 * i); ++t) prompt.push_back((t * 31 + i) % 300);
    requests.push_back(make_request(i, std::move(prompt), i == 1 ? 17 : i, params));
  }
  const Sequences want = run_all(*make_engine(model), requests);
  move_to_device(model);
  auto engine = make_engine(model);
  for (const char* round : {"first", "second"}) expect_same(run_all(*engine, requests), want, 5e-5F, round);
}

// The proof proves: a number of the host that is in captured work stays what it was.
TEST(RecordedGraphs, GiveAgainWhatTheHostPutIn) {
  const c10::InferenceMode inference;
  test::RecordedGraphs graphs;
  const at::Tensor x = at::tensor({1.0F, 2.0F});
  at::Tensor from_device, from_host, from_argument;
  float host = 10;
  const auto graph = graphs.capture([&] {
    from_device = x * 2;
    from_host = x + at::tensor({host, host});
    from_argument = x + host;
  });
  x.fill_(3);
  host = 20;
  graph->replay();
  EXPECT_EQ(from_device[0].item<float>(), 6.0F);
  EXPECT_NE(from_host[0].item<float>(), 23.0F);
  EXPECT_EQ(from_argument[0].item<float>(), 13.0F);
  EXPECT_THROW(static_cast<void>(graphs.capture([&] { host = x[0].item<float>(); })), c10::Error);
}

// The kernels are float32.
TEST_F(DeviceKernelsTest, Float64KeepsTheOperators) {
  Model model = tiny_model(3, "float64");
  move_to_device(model);
  EXPECT_EQ(make_engine(model)->path_name(), "device");
}

}  // namespace
}  // namespace mortise
