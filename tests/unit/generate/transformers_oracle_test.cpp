// The sampler against the logits processors that transformers itself puts together, in its order, on random logits and
// random options; and greedy completions with penalties and bars against its generate. Needs a Python with transformers
// in MORTISE_ORACLES_PYTHON; without it the test is skipped, aloud.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "foundation/base/env.h"
#include "foundation/base/rng.h"
#include "foundation/formats/json.h"
#include "unit/generate/logit_row.h"
#include "unit/generate/tiny_model.h"

namespace mortise {
namespace {

constexpr int64_t kVocab = 120;

std::vector<int64_t> random_ids(RandomStream& random, int64_t most, int64_t vocab = kVocab) {
  std::vector<int64_t> out(random.next_below(static_cast<uint64_t>(most)) + 1);
  for (int64_t& id : out) id = static_cast<int64_t>(random.next_below(static_cast<uint64_t>(vocab)));
  return out;
}

// Each option on in half of the cases.
SamplingParams random_params(RandomStream& random, std::span<const int64_t> before) {
  const auto coin = [&] { return random.next_below(2) == 0; };
  SamplingParams params;
  params.temperature = coin() ? 1.0 : 0.75 + random.next_double();
  if (coin()) params.top_k = 1 + static_cast<int64_t>(random.next_below(150));
  if (coin()) params.top_p = 0.3 + 0.69 * random.next_double();
  if (coin()) params.min_p = 0.2 * random.next_double();
  if (coin()) params.typical_p = 0.3 + 0.69 * random.next_double();
  if (coin()) params.repetition_penalty = 0.7 + random.next_double();
  if (coin()) {
    // A word that would now be completed, one that would not, and one of a single id.
    params.bad_words = {{before.back(), 7}, {(before.back() + 1) % kVocab, 8}, {9}};
    if (before.size() > 1) params.bad_words.push_back({before[before.size() - 2], before.back(), 10});
  }
  params.stop_ids = {11, 12};
  if (coin()) params.min_new_tokens = 1 + static_cast<int64_t>(random.next_below(6));
  return params;
}

Json json_of(const SamplingParams& params) {
  return {{"temperature", params.temperature},
          {"top_k", params.top_k},
          {"top_p", params.top_p},
          {"min_p", params.min_p},
          {"typical_p", params.typical_p},
          {"repetition_penalty", params.repetition_penalty},
          {"bad_words", params.bad_words},
          {"stop_ids", params.stop_ids},
          {"min_new_tokens", params.min_new_tokens},
          {"max_new_tokens", params.max_new_tokens}};
}

// Which tokens the sampler can draw, and their log-probabilities. It inverts the distribution function in the order of
// ids, so a walk along the uniform number visits every remaining token.
Json drawable(const LogitRow& row, const SamplingParams& params, TokenEdits edits) {
  const Kernels& kernels = *find_kernels(Isa::kAuto);
  constexpr double kStep = 2e-6;  // above the rounding of the sum, below any probability of these logits
  Json ids = Json::array();
  Json log_probs = Json::array();
  SamplingScratch scratch;
  int64_t last = -1;
  double sum = 0;
  for (double uniform = 0; uniform < 1.0;) {
    const SampledToken token = sample_token(kernels, row, {&params, edits, uniform}, scratch);
    if (token.id == last) {
      uniform += kStep;
      continue;
    }
    ids.push_back(last = token.id);
    log_probs.push_back(token.filtered_log_prob);
    sum += std::exp(static_cast<double>(token.filtered_log_prob));
    uniform = sum + kStep;
  }
  return {{"ids", ids}, {"log_probs", log_probs}};
}

Json processor_cases(int count) {
  Json cases = Json::array();
  RandomStream random({21, RandomPurpose::kTest, 0, 0, 0});
  for (int i = 0; i < count; ++i) {
    std::vector<float> logits(kVocab);
    for (float& x : logits) x = static_cast<float>(random.next_normal());
    const std::vector<int64_t> prompt = random_ids(random, 6), completion = random_ids(random, 6);
    const SamplingParams params = random_params(random, completion);
    TokenHistory history;
    history.start(params, prompt);
    for (const int64_t id : completion) history.push(id);
    const OwnedLogitRow row(logits, *find_kernels(Isa::kAuto), params.inverse_temperature());
    cases.push_back({{"params", json_of(params)},
                     {"logits", logits},
                     {"prompt_ids", prompt},
                     {"completion_ids", completion},
                     {"ours", drawable(row.view(), params, history.edits())}});
  }
  return cases;
}

Json greedy_cases(const Path& folder) {
  const auto model = Model::load(default_env(), folder);
  EXPECT_TRUE(model.ok()) << model.error().to_string();
  const int64_t vocab = model->config().vocab_size;
  std::vector<GenerateRequest> requests;
  RandomStream random({22, RandomPurpose::kTest, 0, 0, 0});
  for (int64_t i = 0; i < 12; ++i) {
    SamplingParams params;
    params.temperature = 0;
    params.max_new_tokens = 24;
    params.stop_ids = model->config().eos_token_ids;
    params.repetition_penalty = i % 3 == 0 ? 1.0 : 1.0 + 0.1 * static_cast<double>(i);
    if (i % 2 == 0) params.min_new_tokens = 12;
    const std::vector<int64_t> word = random_ids(random, 1, vocab);
    if (i % 4 > 1) params.bad_words = {word, {word[0] / 2, word[0] / 3}};
    requests.push_back(make_request(i, random_ids(random, 20, vocab), 1, params));
  }
  const Sequences got = run_all(*make_engine(*model), requests);
  Json cases = Json::array();
  for (const GenerateRequest& request : requests) {
    cases.push_back({{"params", json_of(request.sampling)},
                     {"prompt_ids", request.prompt_ids},
                     {"ours", got.at({request.request_id, 0}).ids}});
  }
  return cases;
}

TEST(TransformersOracle, SamplesFromTheSameDistributions) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0') {
    GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: transformers did not judge the sampler";
  }
  const Path model = Path(MORTISE_SOURCE_DIR) / "tests/golden/models/qwen2_tied";
  const Path file = Path(MORTISE_BINARY_DIR) / "scratch" / "sampling_oracle.json";
  std::filesystem::create_directories(file.parent_path());
  const int count = std::getenv("MORTISE_LONG") != nullptr ? 5000 : 250;
  const Json cases = {
      {"model", model.string()}, {"processors", processor_cases(count)}, {"greedy", greedy_cases(model)}};
  ASSERT_TRUE(write_file_atomic(default_env(), file, dump_json(cases)).ok());
  const Path script = Path(MORTISE_SOURCE_DIR) / "tests/unit/generate/transformers_oracle.py";
  const std::string command = std::string("HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 '") + python + "' '" + script.string() +
                              "' '" + file.string() + "' 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace mortise
