// Properties of advantage estimators over random batches: rows without a reward, whitening, balance at every place, and
// identities between the algorithms. What holds for any batch is in advantage_rapidcheck_test.cpp.
#include "advantage_call.h"
#include "support/close_to.h"

namespace mortise::test {
namespace {

using Doubles = std::vector<double>;

constexpr uint32_t kSeeds = 20;

class AdvantageProperty : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(AdvantageEstimator, AdvantageProperty,
                         testing::Values("bnpo", "dr_grpo", "gae", "gdpo", "gpg", "grpo", "grpo_passk",
                                         "grpo_vectorized", "maxrl", "opo", "optimal_token_baseline",
                                         "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo",
                                         "rloo_vectorized", "tir_optimal_token_baseline"),
                         [](const auto& name) { return name.param; });

// A row without a reward has advantage 0 and no influence, whatever number it carries.
TEST_P(AdvantageProperty, RowsWithoutARewardTouchNothing) {
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    AdvantageCase b = random_case(seed);
    b.valid.assign(b.num_rows(), 1);
    const size_t out = seed % (b.num_rows() - 1);  // not the group of one
    b.valid[out] = 0;
    AdvantageCase other = b;
    other.rewards[other.end(out) - 1] = seed % 2 == 0 ? NAN : 1000.0F;
    other.columns[2 * out] = other.columns[2 * out + 1] = 1000.0F;
    const auto a = compute(GetParam(), {}, b).advantages;
    EXPECT_EQ(a, compute(GetParam(), {}, other).advantages) << "seed " << seed;
    for (size_t t = b.begin(out); t < b.end(out); ++t) EXPECT_EQ(a[t], 0.0F);
  }
}

TEST(AdvantageSums, WhitenedTokensHaveMeanZeroAndDeviationOne) {
  for (const char* name : {"gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo"}) {
    for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
      const AdvantageCase b = random_case(seed);
      const Doubles a = kept(b, compute(name, {}, b).advantages);
      double sum = 0, square = 0;
      for (const double x : a) sum += x, square += x * x;
      EXPECT_NEAR(sum / double(a.size()), 0, 1e-6) << name;
      EXPECT_NEAR(square / double(a.size() - 1), 1, 1e-4) << name;
    }
  }
}

// B_t is the mean of G_t weighted with W_t: sum_g(A W) = 0 at every place.
TEST(AdvantageSums, TokenBaselineBalancesEveryPlace) {
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    const AdvantageCase b = random_case(seed);
    const auto a = compute("optimal_token_baseline", {}, b).advantages;
    std::map<std::pair<int64_t, size_t>, double> sums;
    for (size_t row = 0; row < b.num_rows(); ++row) {
      double w = 0;
      for (size_t t = b.begin(row); t < b.end(row) && b.group_index[row] != 10000; ++t) {
        if (b.mask[t] == 0) continue;
        const double rho = double(b.is_weights[t]);
        w += (1 - 2 * std::exp(double(b.old_log_prob[t])) + double(b.sum_pi_squared[t])) * rho * rho;
        sums[{b.group_index[row], t - b.begin(row)}] += w * double(a[t]);
      }
    }
    for (const auto& [place, sum] : sums) EXPECT_NEAR(sum, 0, 1e-5) << "seed " << seed;
  }
}

void expect_same(const std::string& one_name, const Params& one_params, const std::string& other_name,
                 const Params& other_params, const AdvantageCase& b, double factor = 1) {
  const Doubles got = kept(b, compute(one_name, one_params, b).advantages);
  Doubles want = kept(b, compute(other_name, other_params, b).advantages);
  for (double& x : want) x *= factor;
  EXPECT_TRUE(all_close(got, want, 1e-5)) << one_name << " and " << other_name;
  EXPECT_TRUE(std::any_of(got.begin(), got.end(), [](double x) { return std::abs(x) > 0.01; }));
}

TEST(AdvantageIdentities, BetweenGroupMethods) {
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    AdvantageCase b = random_case(seed);
    expect_same("dr_grpo", {}, "grpo", {{"norm_adv_by_std_in_grpo", "false"}}, b);
    // groups of four: n / (n - 1) = 4 / 3
    expect_same("rloo_vectorized", {}, "dr_grpo", {{"single", "zero"}}, b, 4.0 / 3);
    expect_same("gpg", {{"alpha", "one"}}, "dr_grpo", {}, b);
    AdvantageCase one_function = b;
    one_function.columns.clear();
    one_function.weights.clear();
    expect_same("gdpo", {{"whiten", "none"}}, "grpo", {}, one_function);
    expect_same("gdpo", {{"norm_adv_by_std_in_grpo", "false"}}, "reinforce_plus_plus_baseline", {}, one_function);
  }
}

// Deviations do not see where rewards begin nor their unit.
TEST(AdvantageIdentities, GrpoIsFreeOfShiftAndScale) {
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    const AdvantageCase b = random_case(seed);
    AdvantageCase moved = b;
    for (size_t row = 0; row < b.num_rows(); ++row) moved.rewards[b.end(row) - 1] = 4 * b.rewards[b.end(row) - 1] - 2;
    const Params params = {{"epsilon", "0.0"}, {"single", "zero"}};
    EXPECT_TRUE(all_close(compute("grpo", params, moved).advantages, compute("grpo", params, b).advantages, 1e-5));
  }
}

TEST(AdvantageIdentities, GaeWithoutACriticIsReinforcePlusPlus) {
  AdvantageCase b = random_case(9, {.holes = false});
  std::fill(b.values.begin(), b.values.end(), 0.0F);
  expect_same("gae", {{"gamma", "0.9"}}, "reinforce_plus_plus", {{"gamma", "0.9"}}, b);
  b = random_case(9);
  std::fill(b.values.begin(), b.values.end(), 0.0F);
  expect_same("gae", {{"gamma", "0.9"}}, "reinforce_plus_plus", {{"gamma", "0.9"}, {"masked_tokens", "skip"}}, b);
}

// With a perfect critic (values = future rewards) all advantages are 0. lambda = 0 looks one step ahead.
TEST(AdvantageIdentities, GaeWithARightCriticIsZero) {
  AdvantageCase b = random_case(4);
  for (size_t row = 0; row < b.num_rows(); ++row) {
    for (size_t t = b.begin(row); t < b.end(row); ++t) b.values[t] = b.rewards[b.end(row) - 1];
  }
  for (const char* lam : {"0.0", "0.7", "1.0"}) {
    const auto got = compute("gae", {{"lam", lam}, {"whiten", "false"}}, b);
    for (const float a : got.advantages) EXPECT_NEAR(a, 0, 1e-6);
    EXPECT_TRUE(all_close(got.returns, b.values, 1e-6));
  }
}

// Equal scores at every place: the baseline is the plain mean of the rows that get there.
TEST(AdvantageIdentities, TokenBaselinesWithEqualScoresAreTheMean) {
  AdvantageCase b = outcome_case({});
  for (int64_t row = 0; row < 6; ++row) {
    b.group_index.push_back(row % 2);
    b.row_offsets.push_back(b.row_offsets.back() + 5);
    for (int t = 0; t < 5; ++t) {
      b.mask.push_back(1);
      b.rewards.push_back(t == 4 ? float(row * row) : 0);
    }
  }
  b.old_log_prob.assign(30, -1.0F);
  b.sum_pi_squared.assign(30, 0.3F);
  expect_same("optimal_token_baseline", {}, "dr_grpo", {}, b);
  expect_same("tir_optimal_token_baseline", {}, "dr_grpo", {}, b);
}

// tir: the places of masked tokens do not count.
TEST(AdvantageIdentities, TirTokenBaselineIsTheOtherWithoutMaskedTokens) {
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    const AdvantageCase b = random_case(seed);
    AdvantageCase dense = b;
    dense.row_offsets = {0};
    dense.mask.clear();
    for (auto* tensor : {&dense.rewards, &dense.old_log_prob, &dense.sum_pi_squared, &dense.is_weights, &dense.values})
      tensor->clear();
    for (size_t row = 0; row < b.num_rows(); ++row) {
      for (size_t t = b.begin(row); t < b.end(row); ++t) {
        if (b.mask[t] == 0) continue;
        dense.mask.push_back(1);
        dense.rewards.push_back(b.rewards[t]);
        dense.values.push_back(b.values[t]);
        dense.old_log_prob.push_back(b.old_log_prob[t]);
        dense.sum_pi_squared.push_back(b.sum_pi_squared[t]);
        dense.is_weights.push_back(b.is_weights[t]);
      }
      dense.row_offsets.push_back(int64_t(dense.mask.size()));
    }
    for (const char* tail : {"true", "false"}) {
      const auto tir = compute("tir_optimal_token_baseline", {{"handle_zero_tail", tail}}, b);
      const auto plain = compute("optimal_token_baseline", {{"handle_zero_tail", tail}}, dense);
      EXPECT_TRUE(all_close(kept(b, tir.advantages), kept(dense, plain.advantages), 1e-6)) << "seed " << seed;
    }
  }
}

TEST(AdvantageIdentities, RemaxSubtractsTheGreedyReward) {
  AdvantageCase b = random_case(2);
  const auto with = compute("remax", {}, b);
  for (size_t row = 0; row < b.num_rows(); ++row) {
    for (size_t t = b.begin(row); t < b.end(row); ++t) {
      if (b.mask[t] == 0) continue;
      EXPECT_NEAR(with.advantages[t], b.rewards[b.end(row) - 1] - b.baselines[row], 1e-6);
      EXPECT_NEAR(with.returns[t], b.rewards[b.end(row) - 1], 1e-6);
    }
  }
  b.baselines[3] = NAN;  // its greedy completion has no reward
  const auto without = compute("remax", {}, b);
  for (size_t t = b.begin(3); t < b.end(3); ++t) EXPECT_EQ(without.advantages[t], 0.0F);
}

}  // namespace
}  // namespace mortise::test
