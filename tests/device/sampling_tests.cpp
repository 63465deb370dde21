// What a device samples, against the CPU's engine and against training.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "device/device_models.h"
#include "foundation/base/rng.h"
#include "model/device/kernel_table.h"
#include "support/expert_check.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

// The logits of the token after `prefix`, by the CPU's layers.
at::Tensor next_logits(const Model& cpu, const GenerateRequest& request, std::span<const int64_t> prefix) {
  std::vector<int64_t> response(prefix.begin(), prefix.end());
  response.push_back(0);
  const PackRow row{request.prompt_ids, response, -1};
  const PackedBatch batch = *pack_rows({&row, 1}, {.vocab_size = cpu.config().vocab_size});
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = cpu.forward_hidden(batch).index_select(0, batch.predict_index_R.slice(0, -1));
  return head_logits(hidden, cpu.head()).squeeze(0).contiguous();
}

// Whether the token would be drawn if the random number, a limit of a filter or the largest logit were other by rounding.
bool is_tie(const at::Tensor& logits_V, const GenerateRequest& request, int64_t sample, size_t place, int64_t token) {
  constexpr double kRounding = 1e-5;
  const std::span<const float> logits(logits_V.const_data_ptr<float>(), static_cast<size_t>(logits_V.numel()));
  if (request.sampling.greedy())
    return logits[static_cast<size_t>(token)] >= *std::ranges::max_element(logits) - static_cast<float>(kRounding);
  const double uniform =
      unit_double(random_u64({request.seed, RandomPurpose::kSampling, static_cast<uint64_t>(request.step),
                              static_cast<uint64_t>(request.first_row_id + sample), static_cast<uint32_t>(place)}));
  for (const double apart : {0.0, -kRounding, kRounding}) {
    for (const double limit : {0.0, -kRounding, kRounding}) {
      SamplingParams sampling = request.sampling;
      if (sampling.top_p < 1.0) sampling.top_p += limit;
      sampling.min_p *= 1.0 + limit;
      const DrawInput draw{&sampling, {}, std::clamp(uniform + apart, 0.0, 1.0)};
      if (sample_plain(logits, draw).id == token) return true;
    }
  }
  return false;
}

std::vector<GenerateRequest> requests_with_filters() {
  std::vector<GenerateRequest> out;
  for (int64_t id = 1; id <= 6; ++id) {
    GenerateRequest& request = out.emplace_back();
    request.request_id = id;
    request.first_row_id = id * 10;
    for (int64_t t = 0; t < id * 7; ++t) request.prompt_ids.push_back((t * 5 + id) % 23);
    request.num_samples = 3;
    request.sampling.max_new_tokens = 20;
    if (id == 2) request.sampling.top_k = 5;
    if (id == 3) request.sampling.top_p = 0.7;
    if (id == 4) request.sampling.temperature = 0.0;
    if (id == 5) request.sampling.min_p = 0.05;
  }
  return out;
}

struct Compared {
  int64_t num_ties = 0, num_all = 0;
};

// Only a draw within rounding distance to the border between two tokens may take the other one.
void expect_cpu_tokens(Family family, const EngineOptions& options, Compared& compared) {
  const std::vector<GenerateRequest> requests = requests_with_filters();
  const Model cpu = model_of(family, "float32", false), model = model_of(family, "float32", true);
  auto engine = GenerateEngine::create(cpu, {}).value(), there = GenerateEngine::create(model, options).value();
  std::printf("sampling by %s\n", std::string(there->path_name()).c_str());
  ASSERT_OK_AND_ASSIGN(const Completions want, sample_all(*engine, requests));
  ASSERT_OK_AND_ASSIGN(const Completions got, sample_all(*there, requests));
  for (const auto& [key, row] : want) {
    const std::vector<int64_t>& ids = got.at(key).ids;
    const auto [mine, theirs] = std::ranges::mismatch(row.ids, ids);
    ++compared.num_all;
    if (mine == row.ids.end() && theirs == ids.end()) continue;
    ++compared.num_ties;
    ASSERT_TRUE(mine != row.ids.end() && theirs != ids.end()) << "one completion ends before the other";
    const GenerateRequest& request = requests[static_cast<size_t>(key.first - 1)];
    const std::span<const int64_t> prefix(row.ids.begin(), mine);
    EXPECT_TRUE(is_tie(next_logits(cpu, request, prefix), request, key.second, prefix.size(), *theirs))
        << "sample " << key.second << " of request " << key.first << ", token " << mine - row.ids.begin() << ": "
        << *theirs << ", not " << *mine;
  }
}

// By the kernels of core/cuda, if their library is there: the tokens of the CPU's engine.
TEST(DeviceSampling, TokensAreThoseOfTheCpu) {
  Compared compared;
  for (const Family family : {Family::kQwen2, Family::kQwen3, Family::kMistral, Family::kGemma2, Family::kGemma3,
                              Family::kPhi3, Family::kQwen3Moe, Family::kGptOss})
    expect_cpu_tokens(family, {}, compared);
  EXPECT_LE(compared.num_ties, compared.num_all * 3 / 100);
}

// The products of experts by tensor cores, of so many tokens that tiles have 16 and 64 rows, and matrices as large as several
// tiles. The emulator computes smaller ones (tests/unit/model/device_layers_test.cpp).
TEST(DeviceSampling, ExpertsByKernelsEqualFloat64) {
  if (device_kernels(device_under_test.device) == nullptr) GTEST_SKIP() << "there are no kernels";
  for (const int64_t num_tokens : {1, 40, 700})
    test::expect_kernels_compute_experts(device_under_test.device, {512, 384, 16, 4}, num_tokens);
}

// Prompts that enter one token at a time, next to samples that run.
TEST(DeviceSampling, PromptsInPiecesOfOneTokenDrawTheTokensOfTheCpu) {
  EngineOptions options;
  options.max_num_seqs = 4;
  options.max_batch_tokens = 4;  // a quarter is for new prompts
  Compared compared;
  for (const Family family : {Family::kQwen3, Family::kMistral, Family::kGemma2})
    expect_cpu_tokens(family, options, compared);
  EXPECT_LE(compared.num_ties, compared.num_all * 3 / 100);
}

// Only the drawn token is within rounding of its draw. So a wrong token is not taken for a tie.
TEST(DeviceSampling, AWrongTokenIsNoTie) {
  if (device_under_test.device.is_cuda()) GTEST_SKIP() << "it looks at the CPU's draws alone";
  const std::vector<GenerateRequest> requests = requests_with_filters();
  const Model cpu = model_of(Family::kQwen3, "float32", false);
  auto engine = GenerateEngine::create(cpu, {}).value();
  ASSERT_OK_AND_ASSIGN(const Completions rows, sample_all(*engine, requests));
  for (const auto& [key, row] : rows) {
    const GenerateRequest& request = requests[static_cast<size_t>(key.first - 1)];
    for (const size_t t : {size_t{0}, size_t{7}, size_t{19}}) {
      const at::Tensor logits = next_logits(cpu, request, std::span(row.ids).first(t));
      for (int64_t token = 0; token < 23; ++token)
        EXPECT_EQ(is_tie(logits, request, key.second, t, token), token == row.ids[t])
            << key.first << " " << key.second << " " << t << " " << token;
    }
  }
}

// A token's log-prob is the one that training computes for it.
TEST(DeviceSampling, LogProbsAreThoseOfTraining) {
  for (const Family family : {Family::kQwen3, Family::kGemma2}) {
    const Model model = model_of(family, "float32", true);
    EngineOptions options;
    options.max_num_seqs = 5;
    auto engine = GenerateEngine::create(model, options).value();
    std::vector<GenerateRequest> requests;
    for (int64_t id = 1; id <= 4; ++id) {
      GenerateRequest& request = requests.emplace_back();
      request.request_id = id;
      request.prompt_ids = {id, 5, 7, 9};
      request.num_samples = 2;
      request.sampling.max_new_tokens = 8 + id;
    }
    ASSERT_OK_AND_ASSIGN(const Completions rows, sample_all(*engine, requests));
    size_t num_tokens = 0;
    for (const auto& [key, one] : rows) {
      const PackRow row{requests[static_cast<size_t>(key.first - 1)].prompt_ids, one.ids, -1};
      const PackedBatch batch = *pack_rows({&row, 1}, {.vocab_size = 23});
      const at::NoGradGuard no_grad;
      const at::Tensor hidden = model.forward_hidden(batch);
      const LogProbs want = head_log_prob(hidden.index_select(0, batch.predict_index_R.to(hidden.device())),
                                          model.head(), batch.targets_R, 1.0, false);
      for (size_t t = 0; t < one.ids.size(); ++t, ++num_tokens)
        EXPECT_NEAR(one.log_prob[t], want.log_prob_R.const_data_ptr<float>()[t], 2e-4);
    }
    EXPECT_EQ(num_tokens, 2U * (9 + 10 + 11 + 12));
  }
}

}  // namespace
}  // namespace mortise
