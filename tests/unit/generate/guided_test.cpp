// The engine with patterns: what completions say, that both paths agree, and that nothing else changes their tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "generate/engine.h"
#include "text/guide/byte_automaton.h"
#include "unit/generate/char_tokenizer.h"
#include "unit/generate/tiny_model.h"

namespace mortise {
namespace {

constexpr const char* kPatterns[] = {R"(\d+(\.\d\d)?)", "(yes|no|I do not know)[.!]",
                                     R"([A-Z][a-z]{2,6}( [a-z]+){0,3}\.)", R"(\{"answer": "?[ab]{1,3}"?\})", "()"};

std::vector<GenerateRequest> guided_requests() {
  std::vector<GenerateRequest> out;
  int64_t id = 1;
  for (const char* const pattern : kPatterns) {
    for (const double temperature : {0.0, 0.7, 1.5}) {
      SamplingParams params = guided(pattern, temperature);
      if (id % 4 == 1) params.top_k = 3;
      if (id % 4 == 2) params.top_p = 0.8;
      if (id % 5 == 3) params.repetition_penalty = 1.3;
      if (id % 5 == 4) params.bad_words = {{70}, {40, 41}};
      out.push_back(make_request(id, {5 + id, 6, 7}, 3, params));
      ++id;
    }
  }
  SamplingParams free = guided("");
  out.push_back(make_request(id, {9, 9}, 3, free));
  return out;
}

EngineOptions with(const Tokenizer& tokenizer) {
  EngineOptions options;
  options.tokenizer = &tokenizer;
  return options;
}

class Guided : public testing::Test {
 protected:
  [[nodiscard]] std::string text_of(const GeneratedSequence& sequence) const {
    std::vector<int64_t> ids = sequence.ids;
    if (sequence.finish_reason == FinishReason::kStop) ids.pop_back();
    return tokenizer.decode(ids);
  }
  const Tokenizer tokenizer = char_tokenizer();
  const Model model = tiny_model();
};

TEST_F(Guided, CompletionsMatchUnlessTheirLimitCutsThem) {
  const auto requests = guided_requests();
  const Sequences all = run_all(*make_engine(model, with(tokenizer)), requests);
  int num_whole = 0, num_cut = 0;
  for (const auto& [key, sequence] : all) {
    const std::string& pattern = requests[static_cast<size_t>(key.first - 1)].sampling.regex;
    if (pattern.empty()) continue;
    const ByteAutomaton automaton = *ByteAutomaton::compile(pattern);
    const std::string text = text_of(sequence);
    if (sequence.finish_reason == FinishReason::kStop) {
      EXPECT_EQ(sequence.ids.back(), 1);
      EXPECT_TRUE(automaton.matches(text)) << pattern << ": " << text;
      ++num_whole;
    } else {
      int32_t state = ByteAutomaton::kStart;
      for (const char c : text) ASSERT_NE(state = automaton.next(state, static_cast<uint8_t>(c)), -1) << text;
      ++num_cut;
    }
  }
  EXPECT_GT(num_whole, 25);
  EXPECT_GT(num_cut, 0);
}

TEST_F(Guided, FastAndPlainPathAgree) {
  EngineOptions plain = with(tokenizer);
  plain.path = GeneratePath::kPlain;
  const auto requests = guided_requests();
  const Sequences fast = run_all(*make_engine(model, with(tokenizer)), requests);
  const Sequences want = run_all(*make_engine(model, plain), requests);
  for (const auto& [key, sequence] : want) {
    const GeneratedSequence& got = fast.at(key);
    ASSERT_EQ(got.ids, sequence.ids) << key.first;
    ASSERT_EQ(got.filtered_log_prob.size(), sequence.filtered_log_prob.size());
    for (size_t t = 0; t < got.ids.size(); ++t) {
      EXPECT_NEAR(got.log_prob[t], sequence.log_prob[t], 1e-4);
      if (!got.filtered_log_prob.empty()) EXPECT_NEAR(got.filtered_log_prob[t], sequence.filtered_log_prob[t], 1e-4);
    }
  }
}

TEST_F(Guided, NothingElseChangesTheTokens) {
  auto requests = guided_requests();
  const Sequences want = run_all(*make_engine(model, with(tokenizer)), requests);
  std::ranges::reverse(requests);
  for (const int64_t max_num_seqs : {1, 4}) {
    EngineOptions options = with(tokenizer);
    options.max_num_seqs = max_num_seqs;
    options.num_threads = 1;
    const Sequences got = run_all(*make_engine(model, options), requests);
    for (const auto& [key, sequence] : want) {
      EXPECT_EQ(got.at(key).ids, sequence.ids) << key.first;
      EXPECT_EQ(got.at(key).log_prob, sequence.log_prob) << key.first;
      EXPECT_EQ(got.at(key).filtered_log_prob, sequence.filtered_log_prob) << key.first;
    }
  }
}

// log_prob is the model's own: that of the same tokens without a pattern. filtered_log_prob is by what the pattern leaves.
TEST_F(Guided, LogProbsAreTheModelsOwnAndThoseOfTheDraw) {
  GenerateRequest request = make_request(1, {5, 6}, 1, guided("a", 1.0));
  request.num_top_log_probs = 300;
  const GeneratedSequence got = run_all(*make_engine(model, with(tokenizer)), {request}).at({1, 0});
  ASSERT_EQ(got.ids, (std::vector<int64_t>{67, 1}));
  EXPECT_EQ(got.filtered_log_prob, (std::vector<float>{0, 0}));
  GenerateRequest free = request;
  free.sampling.regex.clear();
  const GeneratedSequence other = run_all(*make_engine(model, with(tokenizer)), {free}).at({1, 0});
  const auto of_first = [](const GeneratedSequence& sequence, int64_t id) {
    const auto end = sequence.top.begin() + 300;
    return std::find_if(sequence.top.begin(), end, [&](const TokenLogProb& one) { return one.id == id; })->log_prob;
  };
  EXPECT_EQ(got.log_prob[0], of_first(got, 67));
  EXPECT_EQ(got.log_prob[0], of_first(other, 67));
}

TEST_F(Guided, ThePatternWinsOverBarredTokens) {
  SamplingParams early = guided("ab");
  early.min_new_tokens = 9;
  SamplingParams word = guided("(a|b)c");
  word.bad_words = {{67}, {69}};  // a and c
  const Sequences got =
      run_all(*make_engine(model, with(tokenizer)), {make_request(1, {5}, 2, early), make_request(2, {5}, 4, word)});
  for (int64_t j = 0; j < 2; ++j) EXPECT_EQ(text_of(got.at({1, j})), "ab");
  for (int64_t j = 0; j < 4; ++j) EXPECT_EQ(text_of(got.at({2, j})), "bc");
}

TEST_F(Guided, RefusesWhatCannotGuide) {
  const auto refusal = [&](const SamplingParams& params, const EngineOptions& options) {
    const GenerateRequest request = make_request(42, {1}, 1, params);
    const auto taken = make_engine(model, options)->submit({&request, 1});
    return taken.ok() ? "none" : taken.error().to_string();
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal(guided("a(?=b)"), with(tokenizer)), HasSubstr("request 42: the pattern is wrong at character 2"));
  EXPECT_THAT(refusal(guided("\\u00e4"), with(tokenizer)), HasSubstr("no text of this tokenizer's tokens"));
  EXPECT_THAT(refusal(guided("a"), {}), HasSubstr("a pattern needs a tokenizer"));
  SamplingParams endless = guided("a");
  endless.ignore_eos = true;
  EXPECT_THAT(refusal(endless, with(tokenizer)), HasSubstr("ignore_eos and a pattern"));
  SamplingParams without = guided("a");
  without.stop_ids.clear();
  EXPECT_THAT(refusal(without, with(tokenizer)), HasSubstr("a pattern needs an end token"));
}

}  // namespace
}  // namespace mortise
