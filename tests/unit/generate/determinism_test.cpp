// The same tokens and log-probabilities, bit for bit, for any number of slots, order of requests, number of threads and
// cut of the prompts into passes: on the fast path with float32 and bfloat16 weights and of a model with bfloat16
// matrices, on the plain one where `deterministic` asks for it.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "unit/generate/tiny_model.h"

namespace mortise {
namespace {

struct Kind {
  const char* name;
  GeneratePath path;
  WeightFormat weights;
  const char* dtype;
  int64_t hidden_size;  // 192: beyond a core's cache, so that members share matrices
};
const Kind kKinds[] = {
    {"small", GeneratePath::kFast, WeightFormat::kFloat32, "float32", 48},
    {"small_bfloat16", GeneratePath::kFast, WeightFormat::kBfloat16, "float32", 48},
    {"large", GeneratePath::kFast, WeightFormat::kFloat32, "float32", 192},
    {"large_bfloat16", GeneratePath::kFast, WeightFormat::kBfloat16, "float32", 192},
    {"small_rounded", GeneratePath::kFast, WeightFormat::kFloat32, "bfloat16", 48},
    {"large_rounded", GeneratePath::kFast, WeightFormat::kFloat32, "bfloat16", 192},
    {"plain_float32", GeneratePath::kPlain, WeightFormat::kFloat32, "float32", 48},
    {"plain_float64", GeneratePath::kPlain, WeightFormat::kFloat32, "float64", 48},
};

class Determinism : public testing::TestWithParam<Kind> {
 protected:
  static Model make_model() {
    Qwen2Shape shape;
    shape.vocab_size = 300;
    shape.hidden_size = GetParam().hidden_size;
    shape.intermediate_size = 2 * GetParam().hidden_size;
    shape.num_layers = 2;
    shape.num_heads = 6;
    shape.num_kv_heads = 2;
    shape.initializer_range = 0.15;
    shape.max_position_embeddings = 256;
    return *Model::random(*make_qwen2_config(shape), 5, GetParam().dtype);
  }

  // Prompts of several lengths, two of them with a common start; penalties, filters and bars in some.
  static std::vector<GenerateRequest> make_requests() {
    const bool plain = GetParam().path == GeneratePath::kPlain;
    SamplingParams params;
    params.max_new_tokens = plain ? 10 : 24;
    params.temperature = 1.2;
    std::vector<int64_t> start;
    for (int64_t i = 0; i < 37; ++i) start.push_back(i * 7 % 300);
    std::vector<int64_t> other = start;
    other.back() = 5;
    std::vector<GenerateRequest> out = {make_request(1, {5, 6, 7}, plain ? 2 : 9, params),
                                        make_request(2, start, plain ? 2 : 4, params)};
    params.top_k = 30;
    params.top_p = 0.9;
    params.typical_p = 0.95;
    out.push_back(make_request(3, other, 2, params));
    params.repetition_penalty = 1.3;
    params.bad_words = {{17}, {5, 6}};
    params.stop_ids = {1, 2, 3, 4};
    out.push_back(make_request(4, {250}, 2, params));
    return out;
  }

  static Sequences run(const Model& model, int64_t max_num_seqs, int threads, int64_t max_batch_tokens,
                       const std::vector<GenerateRequest>& requests) {
    EngineOptions options;
    options.path = GetParam().path;
    options.weights = GetParam().weights;
    options.deterministic = true;
    options.max_num_seqs = max_num_seqs;
    options.max_batch_tokens = max_batch_tokens;
    options.num_threads = threads;
    auto engine = make_engine(model, options);
    at::set_num_threads(threads);  // threads of the plain path
    return run_all(*engine, requests);
  }
};

void expect_same(const Sequences& want, const Sequences& got, const std::string& what) {
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [key, sequence] : want) {
    const GeneratedSequence& other = got.at(key);
    ASSERT_EQ(sequence.ids, other.ids) << what << ": request " << key.first << " sample " << key.second;
    ASSERT_EQ(sequence.log_prob, other.log_prob) << what;  // bit for bit
    ASSERT_EQ(sequence.filtered_log_prob, other.filtered_log_prob) << what;
  }
}

TEST_P(Determinism, SlotsOrderAndThreadsChangeNoBit) {
  const Model model = make_model();
  std::vector<GenerateRequest> requests = make_requests();
  const Sequences want = run(model, 256, 1, 256, requests);
  for (const int64_t max_num_seqs : {1, 3, 8}) {
    for (const int threads : {1, 2}) {
      expect_same(want, run(model, max_num_seqs, threads, max_num_seqs == 3 ? 16 : 256, requests),
                  std::to_string(max_num_seqs) + " slots, " + std::to_string(threads) + " threads");
      std::rotate(requests.begin(), requests.begin() + 1, requests.end());  // another order each time
    }
  }
  std::ranges::reverse(requests);
  expect_same(want, run(model, 256, 2, 256, requests), "reversed order");
  Sequences alone;
  for (const GenerateRequest& request : requests) alone.merge(run(model, 4, 2, 256, {request}));
  expect_same(want, alone, "each request alone");
}

INSTANTIATE_TEST_SUITE_P(All, Determinism, testing::ValuesIn(kKinds),
                         [](const auto& test) { return std::string(test.param.name); });

// libtorch's number of threads is the caller's again after each step.
TEST(DeterministicPlainPath, GivesTheThreadsBack) {
  const Model model = tiny_model(3, "float64");
  EngineOptions options;
  options.path = GeneratePath::kPlain;
  options.deterministic = true;
  auto engine = make_engine(model, options);
  at::set_num_threads(2);
  SamplingParams params;
  params.max_new_tokens = 2;
  run_all(*engine, {make_request(1, {5}, 1, params)});
  EXPECT_EQ(at::get_num_threads(), 2);
  at::set_num_threads(1);
}

}  // namespace
}  // namespace mortise
