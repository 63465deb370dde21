// The trainer's filters (model/head/token_filter.h) leave what the sampler draws from.
#include "model/head/token_filter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "generate/sample/sampling.h"

namespace mortise {
namespace {

std::vector<float> filter_test_logits(size_t size, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  std::vector<float> out(size);
  for (float& x : out) x = normal(generator);
  for (size_t i = 0; i + 7 < size; i += 7) out[i] = out[i + 1];  // ties
  return out;
}

// The log-prob of a drawn token says what it was drawn from: sample_plain normalises over the kept tokens.
TEST(TokenFilter, LeavesWhatTheSamplerDrawsFrom) {
  std::vector<Sampling> settings(9);
  settings[0].top_k = 7;
  settings[1].top_p = 0.7;
  settings[2].min_p = 0.1;
  settings[3].typical_p = 0.6;
  settings[4] = {.temperature = 0.8, .top_k = 40, .top_p = 0.9, .min_p = 0.05, .typical_p = 0.9};
  settings[5] = {.temperature = 1.7, .top_p = 0.999};
  settings[6].top_p = 1e-9;
  settings[7].typical_p = 1e-9;
  settings[8] = {.temperature = 0.5, .top_k = 1'000'000, .top_p = 0.95};
  TokenFilterScratch scratch;
  std::vector<int32_t> ids;
  for (size_t setting = 0; setting < settings.size(); ++setting) {
    const Sampling& sampling = settings[setting];
    for (const size_t vocab : {size_t{2}, size_t{300}, size_t{3000}}) {
      for (uint32_t seed = 0; seed < 5; ++seed) {
        SCOPED_TRACE(std::to_string(setting) + " vocab " + std::to_string(vocab) + " seed " + std::to_string(seed));
        const std::vector<float> logits = filter_test_logits(vocab, seed);
        std::vector<double> scaled;
        for (const float logit : logits) scaled.push_back(static_cast<double>(logit) / sampling.temperature);
        filter_tokens(scaled, sampling, scratch, ids);
        ASSERT_FALSE(ids.empty());
        EXPECT_TRUE(std::ranges::is_sorted(ids));
        double sum = 0;
        for (const int32_t id : ids) sum += std::exp(scaled[static_cast<size_t>(id)]);
        for (const double uniform : {0.0, 0.3, 0.77, 0.999999}) {
          const SampledToken token = sample_plain(logits, {&sampling, {}, uniform});
          EXPECT_TRUE(std::ranges::binary_search(ids, static_cast<int32_t>(token.id)));
          EXPECT_NEAR(static_cast<double>(token.filtered_log_prob),
                      scaled[static_cast<size_t>(token.id)] - std::log(sum), 2e-6);
        }
      }
    }
  }
}

TEST(TokenFilter, ForbiddenTokensAreNeverLeft) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const std::vector<double> logits{3.0, kNone, 1.0, 2.0, kNone};
  TokenFilterScratch scratch;
  std::vector<int32_t> ids;
  filter_tokens(logits, {}, scratch, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 2, 3}));
  filter_tokens(logits, {.top_k = 2}, scratch, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 3}));
  filter_tokens(std::vector<double>(3, kNone), {.top_p = 0.5}, scratch, ids);
  EXPECT_TRUE(ids.empty());
}

}  // namespace
}  // namespace mortise
