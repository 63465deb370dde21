// The sampler against its plain judge and against exact probabilities.
#include "generate/sample/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "foundation/base/rng.h"
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

SampledToken sample(const OwnedLogitRow& row, const SamplingParams& params, double uniform,
                    std::span<const int64_t> barred = {}) {
  SamplingScratch scratch;
  return sample_token(kernels(), row.view(), params, barred, uniform, scratch);
}

struct Case {
  const char* name;
  double temperature;
  int64_t top_k;
  double top_p;
  double min_p;
  bool bars;
};
const Case kCases[] = {
    {"plain", 1.0, 0, 1.0, 0.0, false},       {"hot", 1.7, 0, 1.0, 0.0, false},
    {"cold", 0.3, 0, 1.0, 0.0, false},        {"barred", 1.0, 0, 1.0, 0.0, true},
    {"top_k", 0.9, 7, 1.0, 0.0, false},       {"top_p", 1.1, 0, 0.7, 0.0, false},
    {"min_p", 1.2, 0, 1.0, 0.1, false},       {"all", 0.8, 40, 0.9, 0.05, false},
    {"all_barred", 0.8, 40, 0.9, 0.05, true}, {"top_k_1", 1.0, 1, 1.0, 0.0, false},
    {"tiny_top_p", 1.0, 0, 1e-9, 0.0, false}, {"top_k_huge", 1.0, 100000, 1.0, 0.0, true},
    {"greedy", 0.0, 0, 1.0, 0.0, false},      {"greedy_barred", 0.0, 5, 0.5, 0.0, true},
};
SamplingParams params_of(const Case& c) {
  SamplingParams params;
  params.temperature = c.temperature;
  params.top_k = c.top_k;
  params.top_p = c.top_p;
  params.min_p = c.min_p;
  return params;
}

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
      std::vector<int64_t> barred;
      if (GetParam().bars && size > 1) {  // the most likely one, and another
        const auto best = std::max_element(row.values.begin(), row.values.end()) - row.values.begin();
        barred = {best, static_cast<int64_t>(size) - 1};
        if (barred[0] == barred[1]) barred.pop_back();
      }
      for (int i = 0; i < 50; ++i) {
        const double uniform = random.next_double();
        const SampledToken fast = sample(row, params, uniform, barred);
        const SampledToken plain = sample_plain({row.values.data(), size}, params, barred, uniform);
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

// Probabilities by the definition of transformers' warpers, written once more without sampling.
std::map<int64_t, double> exact_distribution(const std::vector<float>& logits, const SamplingParams& params,
                                             const std::vector<int64_t>& barred) {
  std::vector<std::pair<double, int64_t>> left;
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<int64_t>(i);
    if (std::ranges::find(barred, id) == barred.end())
      left.emplace_back(static_cast<double>(logits[i]) / params.temperature, id);
  }
  std::ranges::sort(left, std::greater<>());
  if (params.top_k > 0 && static_cast<int64_t>(left.size()) > params.top_k)
    left.resize(static_cast<size_t>(params.top_k));
  const auto total = [&] {
    double sum = 0;
    for (const auto& [x, id] : left) sum += std::exp(x);
    return sum;
  };
  if (params.top_p < 1.0) {
    const double all = total();
    double tail = 0;
    while (left.size() > 1 && tail + std::exp(left.back().first) <= (1.0 - params.top_p) * all) {
      tail += std::exp(left.back().first);
      left.pop_back();
    }
  }
  while (std::exp(left.back().first) < params.min_p * std::exp(left.front().first)) left.pop_back();
  const double all = total();
  std::map<int64_t, double> out;
  for (const auto& [x, id] : left) out[id] = std::exp(x) / all;
  return out;
}

TEST_P(SamplingCases, FrequenciesFitTheDistribution) {
  const Case& c = GetParam();
  if (c.temperature == 0.0) GTEST_SKIP() << "nothing random";
  const SamplingParams params = params_of(c);
  const size_t size = 200;
  const auto logits = random_logits(size, 77, 1.5F);
  const OwnedLogitRow row(logits, kernels(), params.inverse_temperature());
  std::vector<int64_t> barred;
  if (c.bars) barred = {std::max_element(logits.begin(), logits.end()) - logits.begin(), 150};
  const auto exact = exact_distribution(logits, params, barred);
  constexpr int kDraws = 20000;
  std::map<int64_t, int> counts;
  for (int i = 0; i < kDraws; ++i) {
    const double uniform = unit_double(random_u64({5, RandomPurpose::kTest, 3, static_cast<uint64_t>(i), 2}));
    ++counts[sample(row, params, uniform, barred).id];
  }
  double chi2 = 0;
  int cells = 0;
  double rest_want = 0;
  double rest_seen = 0;
  for (const auto& [id, p] : exact) {
    const double want = p * kDraws;
    const double seen = counts.contains(id) ? counts[id] : 0;
    counts.erase(id);
    if (want < 8) {
      rest_want += want;
      rest_seen += seen;
      continue;
    }
    chi2 += (seen - want) * (seen - want) / want;
    ++cells;
  }
  if (rest_want > 0) {
    chi2 += (rest_seen - rest_want) * (rest_seen - rest_want) / std::max(rest_want, 1.0);
    ++cells;
  }
  EXPECT_TRUE(counts.empty()) << "a token outside the kept set came: " << counts.begin()->first;
  const double freedom = std::max(1, cells - 1);
  EXPECT_LT(chi2, freedom + 5 * std::sqrt(2 * freedom) + 10) << cells << " cells";  // beyond five sigma
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

TEST(Sampling, EqualLogitsFollowTransformers) {
  const std::vector<float> logits = {1.0F, 3.0F, 3.0F, 3.0F, 0.0F};
  const OwnedLogitRow row(logits, kernels(), 1.0F);
  SamplingParams params;
  params.top_k = 2;  // all three that equal the second largest stay
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
  EXPECT_EQ(sample(row, {}, 0.0).id, 10);
  EXPECT_EQ(sample(row, {}, std::nextafter(1.0, 0.0)).id, 290);
}

}  // namespace
}  // namespace mortise
