// The engine with each option of sampling: the fast path against the plain one, and what must hold of the tokens.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "foundation/base/text.h"
#include "generate/engine.h"
#include "unit/generate/exact_distribution.h"
#include "unit/generate/tiny_model.h"

namespace mortise {
namespace {

std::vector<int64_t> long_prompt(int64_t size, int64_t step) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < size; ++i) out.push_back(i * step % 300);
  return out;
}

struct Option {
  const char* name;
  void (*set)(SamplingParams&);
};
const Option kOptions[] = {
    {"none", [](SamplingParams&) {}},
    {"temperature", [](SamplingParams& p) { p.temperature = 1.4; }},
    {"top_k", [](SamplingParams& p) { p.top_k = 9; }},
    {"top_p", [](SamplingParams& p) { p.top_p = 0.6; }},
    {"min_p", [](SamplingParams& p) { p.min_p = 0.2; }},
    {"typical_p", [](SamplingParams& p) { p.typical_p = 0.7; }},
    {"repetition", [](SamplingParams& p) { p.repetition_penalty = 1.5; }},
    {"presence", [](SamplingParams& p) { p.presence_penalty = 1.0; }},
    {"frequency", [](SamplingParams& p) { p.frequency_penalty = 0.5; }},
    {"bad_words",
     [](SamplingParams& p) {
       p.bad_words = {{17}, {5, 6}, {250, 3, 4}};
     }},
    {"min_new_tokens",
     [](SamplingParams& p) {
       p.stop_ids = {1, 2, 3};
       p.min_new_tokens = 7;
     }},
    {"all",
     [](SamplingParams& p) {
       p.temperature = 1.3;
       p.top_k = 50;
       p.top_p = 0.95;
       p.min_p = 0.01;
       p.typical_p = 0.9;
       p.repetition_penalty = 1.2;
       p.presence_penalty = 0.2;
       p.frequency_penalty = 0.1;
     }},
    {"greedy_repetition",
     [](SamplingParams& p) {
       p.temperature = 0;
       p.repetition_penalty = 1.3;
     }},
};

class Options : public testing::TestWithParam<Option> {};

TEST_P(Options, FastAndPlainPathAgree) {
  const Model model = tiny_model();
  SamplingParams params;
  params.max_new_tokens = 30;
  GetParam().set(params);
  std::vector<GenerateRequest> requests = {make_request(1, {5, 6, 7}, 4, params),
                                           make_request(2, long_prompt(40, 7), 3, params)};
  for (GenerateRequest& request : requests) request.num_top_log_probs = 3;
  EngineOptions plain;
  plain.path = GeneratePath::kPlain;
  const Sequences fast = run_all(*make_engine(model), requests);
  const Sequences want = run_all(*make_engine(model, plain), requests);
  int same = 0;
  for (const auto& [key, sequence] : want) {
    const GeneratedSequence& got = fast.at(key);
    if (got.ids != sequence.ids) continue;
    ++same;
    ASSERT_EQ(got.filtered_log_prob.size(), params.changes_distribution() ? got.ids.size() : 0);
    ASSERT_EQ(got.top.size(), 3 * got.ids.size());
    for (size_t t = 0; t < got.ids.size(); ++t) {
      EXPECT_NEAR(got.log_prob[t], sequence.log_prob[t], 1e-5);
      if (!got.filtered_log_prob.empty()) {
        EXPECT_NEAR(got.filtered_log_prob[t], sequence.filtered_log_prob[t], 1e-4);
      }
      for (size_t i = 3 * t; i < 3 * t + 3; ++i) EXPECT_NEAR(got.top[i].log_prob, sequence.top[i].log_prob, 1e-5);
    }
  }
  // A uniform number may fall between two roundings of one boundary; never for most rows.
  EXPECT_GE(same, static_cast<int>(want.size()) - 1);
}

// Logits behind `ids`, by the model's plain layers.
std::vector<float> logits_after(const Model& model, const std::vector<int64_t>& ids) {
  const PackRow row{ids, {}, -1};
  PackOptions options;
  options.keep_last_token = true;
  options.vocab_size = model.config().vocab_size;
  const PackedBatch batch = *pack_rows({&row, 1}, options);
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = model.forward_hidden(batch, {LayerPath::kPlain, {}}).narrow(0, batch.last_index[0], 1);
  const at::Tensor logits = head_logits(hidden, model.head()).contiguous();
  return {logits.const_data_ptr<float>(), logits.const_data_ptr<float>() + logits.numel()};
}

Probabilities exact_after(const Model& model, const SamplingParams& params, const std::vector<int64_t>& prompt,
                          const std::vector<int64_t>& completion) {
  TokenHistory history;
  history.start(params, prompt);
  std::vector<int64_t> ids = prompt;
  for (const int64_t id : completion) {
    history.push(id);
    ids.push_back(id);
  }
  return exact_distribution(logits_after(model, ids), params, history.edits());
}

// First tokens, and what follows the commonest one: as often as the option's definition says, through prompts that
// samples share, pages, history and head.
TEST_P(Options, FrequenciesThroughTheEngineFitTheDistribution) {
  const Model model = tiny_model();
  SamplingParams params;
  params.max_new_tokens = 2;
  GetParam().set(params);
  if (params.greedy()) GTEST_SKIP() << "nothing random";
  constexpr int kDraws = 6000;
  const std::vector<int64_t> prompt = {5, 6, 7, 250, 3};
  Counts first;
  std::map<int64_t, Counts> second;
  for (const auto& [key, sequence] : run_all(*make_engine(model), {make_request(1, prompt, kDraws, params)})) {
    ++first[sequence.ids[0]];
    if (sequence.ids.size() > 1) ++second[sequence.ids[0]][sequence.ids[1]];
  }
  expect_fit(exact_after(model, params, prompt, {}), first, kDraws);
  const auto commonest = std::ranges::max_element(first, {}, [](const auto& entry) { return entry.second; });
  EXPECT_GT(commonest->second, 30);
  expect_fit(exact_after(model, params, prompt, {commonest->first}), second[commonest->first], commonest->second);
}

INSTANTIATE_TEST_SUITE_P(All, Options, testing::ValuesIn(kOptions),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(SamplingOptions, ARepetitionPenaltyHoldsForPromptAndCompletion) {
  const Model model = tiny_model();
  SamplingParams params;
  params.max_new_tokens = 60;
  params.temperature = 0;
  params.repetition_penalty = 1e6;  // nothing may come twice
  const auto prompt = long_prompt(20, 11);
  const auto got = run_all(*make_engine(model), {make_request(1, prompt, 1, params)}).at({1, 0});
  std::vector<int64_t> all = prompt;
  all.insert(all.end(), got.ids.begin(), got.ids.end());
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
}

TEST(SamplingOptions, BadWordsNeverCome) {
  const Model model = tiny_model();
  SamplingParams params;
  params.max_new_tokens = 80;
  const auto free_run = run_all(*make_engine(model), {make_request(1, {9}, 8, params)});
  std::vector<int64_t> pair;  // two tokens that follow one another somewhere
  for (const auto& [key, sequence] : free_run) pair = {sequence.ids[3], sequence.ids[4]};
  const int64_t single = free_run.at({1, 0}).ids[0];
  params.bad_words = {pair, {single}};
  const auto held = run_all(*make_engine(model), {make_request(1, {9}, 8, params)});
  for (const auto& [key, sequence] : held) {
    EXPECT_EQ(std::ranges::count(sequence.ids, single), 0);
    EXPECT_EQ(std::search(sequence.ids.begin(), sequence.ids.end(), pair.begin(), pair.end()), sequence.ids.end());
  }
}

TEST(SamplingOptions, StopStringsEndTheCompletion) {
  const Model model = tiny_model();
  const auto tokenizer = Tokenizer::load(Path(MORTISE_SOURCE_DIR) / "tests/golden/text/tokenizers/qwen2");
  ASSERT_TRUE(tokenizer.ok());
  EngineOptions options;
  options.tokenizer = &*tokenizer;
  SamplingParams params;
  params.max_new_tokens = 40;
  const auto free_run = run_all(*make_engine(model, options), {make_request(1, {9}, 4, params)});
  int tried = 0;
  for (const auto& [key, sequence] : free_run) {
    const std::vector<int64_t> head(sequence.ids.begin(), sequence.ids.begin() + 12);
    const std::string text = tokenizer->decode(head);
    ASSERT_GE(text.size(), 4U);
    const std::string stop = text.substr(text.size() - 3);
    if (find_invalid_utf8(stop)) continue;
    ++tried;
    SamplingParams stopped = params;
    stopped.stop_strings = {"no such text", stop};
    const auto cut = run_all(*make_engine(model, options), {make_request(1, {9}, 4, stopped)}).at(key);
    EXPECT_EQ(cut.finish_reason, FinishReason::kStop);
    ASSERT_LE(cut.ids.size(), 13U);
    EXPECT_TRUE(std::equal(cut.ids.begin(), cut.ids.end(), sequence.ids.begin()));
    EXPECT_NE(tokenizer->decode(cut.ids).find(stop), std::string::npos);
    stopped.min_new_tokens = 30;  // not before
    EXPECT_GE(run_all(*make_engine(model, options), {make_request(1, {9}, 4, stopped)}).at(key).ids.size(), 30U);
  }
  EXPECT_GE(tried, 2);
}

TEST(SamplingOptions, SharedPrefixesChangeNoBit) {
  const Model model = tiny_model();
  SamplingParams params;
  params.max_new_tokens = 20;
  std::vector<GenerateRequest> requests;
  const auto start = long_prompt(100, 7);
  for (int64_t i = 0; i < 5; ++i) {
    std::vector<int64_t> prompt = start;
    prompt.push_back(200 + i);
    requests.push_back(make_request(i, prompt, 2, params));
  }
  requests.push_back(make_request(5, long_prompt(60, 7), 1, params));
  Sequences want;
  for (const GenerateRequest& request : requests) want.merge(run_all(*make_engine(model), {request}));
  for (const int64_t max_num_seqs : {1, 3, 64}) {
    EngineOptions options;
    options.max_num_seqs = max_num_seqs;
    options.max_batch_tokens = max_num_seqs == 3 ? 16 : 256;
    auto engine = make_engine(model, options);
    const Sequences got = run_all(*engine, requests);
    for (const auto& [key, sequence] : want) {
      EXPECT_EQ(got.at(key).ids, sequence.ids);
      EXPECT_EQ(got.at(key).log_prob, sequence.log_prob);
    }
    EXPECT_EQ(engine->num_prefilled_tokens(), 101U + 4 * 5 + 12);
    run_all(*engine, requests);
    EXPECT_EQ(engine->num_prefilled_tokens(), 101U + 4 * 5 + 12 + 5 * 5 + 12);
    ASSERT_TRUE(engine->set_version(1).ok());  // other weights: nothing is known any more
    run_all(*engine, requests);
    EXPECT_EQ(engine->num_prefilled_tokens(), 2 * (101U + 4 * 5 + 12) + 5 * 5 + 12);
  }
}

TEST(SamplingOptions, SeedsBelongToRequests) {
  const Model model = tiny_model();
  SamplingParams params;
  params.max_new_tokens = 25;
  auto one = make_request(1, {5, 6}, 1, params);
  auto two = make_request(2, {5, 6}, 1, params);
  one.first_row_id = two.first_row_id = 0;
  one.seed = two.seed = 99;
  auto three = make_request(3, {5, 6}, 1, params);
  three.first_row_id = 0;
  const Sequences got = run_all(*make_engine(model), {one, two, three});
  EXPECT_EQ(got.at({1, 0}).ids, got.at({2, 0}).ids);
  EXPECT_NE(got.at({1, 0}).ids, got.at({3, 0}).ids);
}

TEST(SamplingOptions, WhatCannotBeIsRefused) {
  const Model model = tiny_model();
  auto engine = make_engine(model);
  const auto expect_error = [&](void (*set)(SamplingParams&), const char* text) {
    SamplingParams params;
    set(params);
    const GenerateRequest request = make_request(42, {1}, 1, params);
    const auto result = engine->submit({&request, 1});
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_THAT(result.error().to_string(), testing::AllOf(testing::HasSubstr(text), testing::HasSubstr("request 42")));
  };
  expect_error([](SamplingParams& p) { p.typical_p = 0; }, "typical_p");
  expect_error([](SamplingParams& p) { p.repetition_penalty = 0; }, "repetition_penalty");
  expect_error([](SamplingParams& p) { p.presence_penalty = NAN; }, "presence_penalty");
  expect_error([](SamplingParams& p) { p.frequency_penalty = -1e300; }, "from -1e6 to 1e6");
  expect_error([](SamplingParams& p) { p.repetition_penalty = 1e60; }, "repetition_penalty must be from 1e-6");
  expect_error([](SamplingParams& p) { p.temperature = 1e60; }, "temperature must be 0, or from 1e-6 to 1e6");
  expect_error([](SamplingParams& p) { p.temperature = 1e-60; }, "temperature must be 0");
  expect_error([](SamplingParams& p) { p.bad_words = {{1, 300}}; }, "id 300 of a bad word");
  expect_error([](SamplingParams& p) { p.bad_words = {{}}; }, "a bad word has no ids");
  expect_error([](SamplingParams& p) { p.stop_strings = {"x"}; }, "need a tokenizer");
  expect_error(
      [](SamplingParams& p) {
        for (int64_t id = 0; id < 300; ++id) p.bad_words.push_back({id});
      },
      "no token can be sampled");
}

}  // namespace
}  // namespace mortise
