// The sampler against its reference implementation and against exact probabilities.
#include "generate/sample/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "foundation/base/rng.h"
#include "support/long_run.h"
#include "unit/generate/exact_distribution.h"
#include "unit/generate/logit_row.h"

namespace mortise {
namespace {

const Kernels& kernels() { return *find_kernels(Isa::kAuto); }

std::vector<float> random_logits(size_t size, uint32_t seed, float scale) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> out(size);
  for (float& x : out) x = normal(generator);
  return out;
}

SampledToken sample(const OwnedLogitRow& row, const SamplingParams& params, double uniform, TokenEdits edits = {}) {
  SamplingScratch scratch;
  return sample_token(kernels(), row.view(), {&params, edits, uniform}, scratch);
}

struct Case {
  const char* name;
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double typical_p = 1.0;
  double repetition = 1.0;
  double presence = 0.0;
  double frequency = 0.0;
  size_t num_barred = 0;  // the likeliest one first
  int64_t allows = 0;     // a pattern allows one of so many tokens, with whole chunks and none of others; 0: all
};
const Case kCases[] = {
    {.name = "plain"},
    {.name = "hot", .temperature = 1.7},
    {.name = "cold", .temperature = 0.3},
    {.name = "barred", .num_barred = 2},
    {.name = "many_barred", .num_barred = 20},
    {.name = "guided", .allows = 9},
    {.name = "guided_and_barred", .temperature = 0.8, .num_barred = 2, .allows = 3},
    {.name = "guided_top_k", .temperature = 1.2, .top_k = 4, .allows = 30},
    {.name = "guided_top_p", .top_p = 0.8, .repetition = 1.3, .allows = 9},
    {.name = "guided_greedy", .temperature = 0.0, .allows = 50},
    {.name = "top_k", .temperature = 0.9, .top_k = 7},
    {.name = "top_p", .temperature = 1.1, .top_p = 0.7},
    {.name = "min_p", .temperature = 1.2, .min_p = 0.1},
    {.name = "typical", .typical_p = 0.6},
    {.name = "typical_hot", .temperature = 1.6, .typical_p = 0.95},
    {.name = "tiny_typical", .typical_p = 1e-9},
    {.name = "repetition", .repetition = 1.4},
    {.name = "rewarded_repetition", .repetition = 0.7},
    {.name = "presence", .presence = 0.8},
    {.name = "frequency", .temperature = 0.8, .frequency = 0.5},
    {.name = "negative_frequency", .frequency = -0.3},
    {.name = "all", .temperature = 0.8, .top_k = 40, .top_p = 0.9, .min_p = 0.05},
    {.name = "all_barred", .temperature = 0.8, .top_k = 40, .top_p = 0.9, .min_p = 0.05, .num_barred = 2},
    {.name = "every_option",
     .temperature = 1.3,
     .top_k = 60,
     .top_p = 0.95,
     .min_p = 0.01,
     .typical_p = 0.9,
     .repetition = 1.2,
     .presence = 0.3,
     .frequency = 0.2,
     .num_barred = 3},
    {.name = "top_k_1", .top_k = 1},
    {.name = "tiny_top_p", .top_p = 1e-9},
    {.name = "top_k_huge", .top_k = 100000, .num_barred = 2},
    {.name = "top_k_endless", .top_k = std::numeric_limits<int64_t>::max(), .num_barred = 2},
    {.name = "coldest", .temperature = kLeastTemperature},
    {.name = "coldest_filtered", .temperature = kLeastTemperature, .top_k = 9, .top_p = 0.9, .typical_p = 0.9},
    {.name = "hottest", .temperature = kMostTemperature},
    {.name = "hottest_top_p", .temperature = kMostTemperature, .top_p = 0.5},
    {.name = "most_penalised",
     .top_p = 0.9,
     .repetition = kMostPenalty,
     .presence = kMostPenalty,
     .frequency = kMostPenalty},
    {.name = "least_repetition", .top_p = 0.9, .repetition = kLeastPenalty},
    {.name = "greedy", .temperature = 0.0},
    {.name = "greedy_barred", .temperature = 0.0, .top_k = 5, .top_p = 0.5, .num_barred = 2},
    {.name = "greedy_penalised", .temperature = 0.0, .repetition = 2.0, .presence = 1.0},
};
SamplingParams params_of(const Case& c) {
  SamplingParams params;
  params.temperature = c.temperature;
  params.top_k = c.top_k;
  params.top_p = c.top_p;
  params.min_p = c.min_p;
  params.typical_p = c.typical_p;
  params.repetition_penalty = c.repetition;
  params.presence_penalty = c.presence;
  params.frequency_penalty = c.frequency;
  return params;
}

// The ids before the current token: every third id, some only in the prompt. And the forbidden ids.
struct OwnedEdits {
  OwnedEdits(const Case& c, std::span<const float> logits) {
    const auto size = static_cast<int64_t>(logits.size());
    for (int64_t id = 0; id < size; id += 3) seen.push_back({id, id % 4});
    std::vector<int64_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, std::greater<>(), [&](int64_t id) { return logits[static_cast<size_t>(id)]; });
    for (size_t i = 0; i < c.num_barred && i + 1 < order.size(); ++i)
      barred.push_back(i == 0 ? order[0] : order[order.size() / 2 - i % (order.size() / 2)]);
    if (c.allows == 0) return;
    allowed.assign((logits.size() + 63) / 64, 0);
    for (int64_t id = 0; id < size; ++id) {
      const int64_t chunk = id / kChunkLogits;
      const bool is_allowed = chunk % 5 == 3 || (chunk % 5 != 2 && id * 7919 % 1009 % c.allows == 0);
      const bool is_last = id == order.back();  // so that one is left
      if (is_allowed || is_last) allowed[static_cast<size_t>(id / 64)] |= uint64_t{1} << (id % 64);
    }
  }
  [[nodiscard]] TokenEdits view() const { return {barred, seen, allowed}; }
  std::vector<SeenToken> seen;
  std::vector<int64_t> barred;
  std::vector<uint64_t> allowed;
};

class SamplingCases : public testing::TestWithParam<Case> {};

TEST_P(SamplingCases, EqualsTheJudge) {
  const SamplingParams params = params_of(GetParam());
  RandomStream random({1, RandomPurpose::kTest, 0, 0, 0});
  int different = 0;
  int total = 0;
  for (const size_t size : {1UL, 5UL, 32UL, 127UL, 300UL, 5000UL}) {
    for (uint32_t seed = 0; seed < 8; ++seed) {
      const OwnedLogitRow row(random_logits(size, seed, 1.0F + static_cast<float>(seed)), kernels(),
                              params.inverse_temperature());
      const std::span<const float> logits(row.values.data(), size);
      const OwnedEdits edits(GetParam(), logits);
      const int num_draws = size < 1000 || test::is_long() ? 50 : 10;  // the plain one sorts all logits each time
      for (int i = 0; i < num_draws; ++i) {
        const double uniform = random.next_double();
        const SampledToken fast = sample(row, params, uniform, edits.view());
        const SampledToken plain = sample_plain(logits, {&params, edits.view(), uniform});
        ++total;
        if (fast.id != plain.id) {
          ++different;  // the uniform number fell on a boundary
          continue;
        }
        ASSERT_NEAR(fast.log_prob, plain.log_prob, 1e-6 * (1 + std::abs(plain.log_prob))) << size;
        if (!params.greedy()) {
          ASSERT_NEAR(fast.filtered_log_prob, plain.filtered_log_prob, 2e-6 * (1 + std::abs(plain.log_prob))) << size;
        }
      }
    }
  }
  EXPECT_LE(different, total / 500) << "of " << total;
}

TEST_P(SamplingCases, FrequenciesFitTheDistribution) {
  const Case& c = GetParam();
  if (c.temperature == 0.0) GTEST_SKIP() << "nothing random";
  const SamplingParams params = params_of(c);
  const size_t size = 200;
  const auto logits = random_logits(size, 77, 1.5F);
  const OwnedLogitRow row(logits, kernels(), params.inverse_temperature());
  const OwnedEdits edits(c, logits);
  const Probabilities exact = exact_distribution(logits, params, edits.view());
  constexpr int kDraws = 20000;
  Counts counts;
  for (int i = 0; i < kDraws; ++i) {
    const double uniform = unit_double(random_u64({5, RandomPurpose::kTest, 3, static_cast<uint64_t>(i), 2}));
    ++counts[sample(row, params, uniform, edits.view()).id];
  }
  expect_fit(exact, counts, kDraws);
}

INSTANTIATE_TEST_SUITE_P(All, SamplingCases, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Sampling, LogProbIsWithinAMillionthOfDouble) {
  SamplingParams params;
  for (const size_t size : {512UL, 32768UL, 151936UL}) {
    for (const float scale : {0.5F, 4.0F}) {
      const auto logits = random_logits(size, 9, scale);
      const OwnedLogitRow row(logits, kernels(), 1.0F);
      double sum = 0;
      for (const float x : logits) sum += std::exp(static_cast<double>(x));
      for (const double uniform : {0.001, 0.4, 0.999}) {
        const SampledToken token = sample(row, params, uniform);
        EXPECT_NEAR(token.log_prob, static_cast<double>(logits[static_cast<size_t>(token.id)]) - std::log(sum), 1e-6);
      }
    }
  }
}

TEST(Sampling, FilteredLogProbIsThatOfTheDistribution) {
  const auto logits = random_logits(200, 78, 1.5F);
  for (const Case& c : kCases) {
    if (c.temperature == 0.0) continue;
    const SamplingParams params = params_of(c);
    const OwnedLogitRow row(logits, kernels(), params.inverse_temperature());
    const OwnedEdits edits(c, logits);
    const Probabilities exact = exact_distribution(logits, params, edits.view());
    for (const double uniform : {0.01, 0.3, 0.7, 0.99}) {
      const SampledToken token = sample(row, params, uniform, edits.view());
      ASSERT_TRUE(exact.contains(token.id)) << c.name;
      EXPECT_NEAR(token.filtered_log_prob, std::log(exact.at(token.id)), 1e-5) << c.name;
    }
  }
}

// Penalties and forbidden tokens change the draw, but not the log-probability that training uses.
TEST(Sampling, LogProbIsTheModelsOwn) {
  const auto logits = random_logits(300, 79, 2.0F);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) / 0.7);
  for (const Case& c : kCases) {
    SamplingParams params = params_of(c);
    params.temperature = 0.7;
    const OwnedLogitRow row(logits, kernels(), params.inverse_temperature());
    const OwnedEdits edits(c, logits);
    const SampledToken token = sample(row, params, 0.4, edits.view());
    EXPECT_NEAR(token.log_prob, static_cast<double>(logits[static_cast<size_t>(token.id)]) / 0.7 - std::log(sum), 1e-5)
        << c.name;
  }
}

TEST(Sampling, TopLogProbsAreTheLikeliest) {
  auto logits = random_logits(700, 80, 2.0F);
  logits[5] = logits[600] = *std::ranges::max_element(logits) + 1.0F;  // equals: the lower id first
  for (const double temperature : {1.0, 0.6, 0.0}) {
    SamplingParams params;
    params.temperature = temperature;
    params.top_k = 2;  // filters do not matter
    const OwnedLogitRow row(logits, kernels(), params.inverse_temperature());
    for (const int64_t count : {1, 3, 20, 700, 1000}) {
      SamplingScratch scratch;
      std::vector<TokenLogProb> fast, plain;
      append_top_log_probs(kernels(), row.view(), params, count, scratch, fast);
      append_top_log_probs_plain(logits, params, count, plain);
      ASSERT_EQ(fast.size(), static_cast<size_t>(std::min<int64_t>(count, 700)));
      ASSERT_EQ(plain.size(), fast.size());
      EXPECT_EQ(fast[0].id, 5);
      for (size_t i = 0; i < fast.size(); ++i) {
        EXPECT_EQ(fast[i].id, plain[i].id) << i;
        EXPECT_NEAR(fast[i].log_prob, plain[i].log_prob, 1e-5);
        const SampledToken same = sample(row, params, 0.0, {});
        if (same.id == fast[i].id) {
          EXPECT_NEAR(same.log_prob, fast[i].log_prob, 1e-6);
        }
      }
    }
  }
}

TEST(Sampling, EqualLogitsFollowTransformers) {
  const std::vector<float> logits = {1.0F, 3.0F, 3.0F, 3.0F, 0.0F};
  const OwnedLogitRow row(logits, kernels(), 1.0F);
  SamplingParams params;
  params.top_k = 2;  // all three that equal the second largest remain
  std::map<int64_t, int> seen;
  for (int i = 0; i < 300; ++i) ++seen[sample(row, params, i / 300.0).id];
  EXPECT_EQ(seen.size(), 3U);
  params.top_k = 0;
  params.top_p = 0.5;  // among equals the lower index goes first
  seen.clear();
  for (int i = 0; i < 300; ++i) ++seen[sample(row, params, i / 300.0).id];
  EXPECT_EQ(seen.size(), 2U);
  EXPECT_TRUE(seen.contains(2) && seen.contains(3));
  params = {};
  params.temperature = 0;
  EXPECT_EQ(sample(row, params, 0.9).id, 1);
}

TEST(Sampling, UniformAtTheEndsStaysInside) {
  std::vector<float> logits(300, -INFINITY);
  logits[10] = 0.0F;
  logits[290] = 0.0F;
  const OwnedLogitRow row(logits, kernels(), 1.0F);
  const SamplingParams params;
  EXPECT_EQ(sample(row, params, 0.0).id, 10);
  EXPECT_EQ(sample(row, params, std::nextafter(1.0, 0.0)).id, 290);
}

}  // namespace
}  // namespace mortise
