// KL estimators against verl's numbers, and their edges.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "golden_case.h"
#include "kl_call.h"
#include "support/close_to.h"
#include "support/long_run.h"
#include "support/this_build.h"

namespace mortise::test {
namespace {

class KlGolden : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(KlEstimator, KlGolden, testing::Values("k1", "kl", "k2", "mse", "k3", "low_var_kl", "abs"));

class EveryKl : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(KlEstimator, EveryKl,
                         testing::Values("k1", "kl", "k2", "mse", "k3", "low_var_kl", "abs", "k3_ratio",
                                         "k3_row_ratio"));

TEST_P(KlGolden, MatchesVerl) {
  const auto cases = golden_cases("kl_estimator", GetParam());
  ASSERT_GE(cases.size(), 2U);
  for (const GoldenCase& c : cases) {
    SCOPED_TRACE(c.file);
    Kl plugin(kl_estimator(GetParam()));
    const auto& lp = c.at("in.log_prob");
    const auto& ref = c.at("in.ref_log_prob");
    const auto got = compute_kl(plugin, {lp.begin(), lp.end()}, {ref.begin(), ref.end()}, c.num_rows);
    EXPECT_TRUE(all_close(got.loss, c.at("expected.kl"), 1e-5));
    EXPECT_TRUE(all_close(got.grad, c.at("expected.grad_log_prob"), 1e-5));
  }
}

TEST_P(EveryKl, WeightScalesTheGradientAlone) {
  Kl plugin(kl_estimator(GetParam()));
  const std::vector<float> lp = {-1, -2, -0.5F}, ref = {-1.5F, -1, -0.25F};
  const auto one = compute_kl(plugin, lp, ref, 1), two = compute_kl(plugin, lp, ref, 1, 2);
  EXPECT_EQ(one.loss, two.loss);
  for (size_t i = 0; i < lp.size(); ++i) EXPECT_FLOAT_EQ(two.grad[i], 2 * one.grad[i]);
}

TEST_P(EveryKl, MaskedIsZero) {
  Kl plugin(kl_estimator(GetParam()));
  const auto out = compute_kl(plugin, {-1, NAN}, {-2, NAN}, 1, 1, {1, 0}, {-1.5F, INFINITY});
  EXPECT_NE(out.loss[0], 0.0F);
  EXPECT_EQ(out.loss[1], 0.0F);
  EXPECT_EQ(out.grad[1], 0.0F);
  EXPECT_TRUE(compute_kl(plugin, {}, {}, 0).loss.empty());
}

TEST(K3, ClampsAsVerlAndLosesItsGradientThere) {
  Kl plugin(kl_estimator("low_var_kl"));
  const auto out = compute_kl(plugin, {-30, -4}, {-1, -1}, 1);
  EXPECT_FLOAT_EQ(out.loss[0], 10.0F);
  EXPECT_EQ(out.grad[0], 0.0F);
  EXPECT_FLOAT_EQ(out.loss[1], 10.0F);  // exp(3) - 3 - 1 is above it too
  Kl open(kl_estimator("k3"), {{"max_log_ratio", "none"}, {"max_kl", "none"}});
  const auto free = compute_kl(open, {-30, -4}, {-1, -1}, 1);
  EXPECT_FLOAT_EQ(free.loss[1], float(std::exp(3.0) - 4));
  EXPECT_FLOAT_EQ(free.grad[1], float(1 - std::exp(3.0)));
  EXPECT_GT(free.loss[0], 1e12F);
}

// The clamps of every estimator: value at the bound, no gradient beyond.
TEST_P(EveryKl, ClampsAreOptions) {
  Kl bounded(kl_estimator(GetParam()), {{"max_log_ratio", "0.5"}, {"max_kl", "none"}});
  Kl open(kl_estimator(GetParam()), {{"max_log_ratio", "none"}, {"max_kl", "inf"}});
  Kl small(kl_estimator(GetParam()), {{"max_log_ratio", "inf"}, {"max_kl", "0.01"}});
  const auto cut = compute_kl(bounded, {-1}, {-3}, 1), full = compute_kl(open, {-1}, {-3}, 1);
  const auto edge = compute_kl(open, {-1}, {-1.5F}, 1), least = compute_kl(small, {-1}, {-3}, 1);
  EXPECT_FLOAT_EQ(cut.loss[0], edge.loss[0]);
  EXPECT_NE(cut.loss[0], full.loss[0]);
  EXPECT_FLOAT_EQ(least.loss[0], 0.01F);
  if (GetParam().ends_with("_ratio")) return;  // the gradient through the ratio remains
  EXPECT_EQ(cut.grad[0], 0.0F);
  EXPECT_EQ(least.grad[0], 0.0F);
}

TEST_P(EveryKl, GradientIsTheDifferenceQuotient) {
  Kl plugin(kl_estimator(GetParam()), {{"max_log_ratio", "none"}, {"max_kl", "none"}});
  for (const float lp : {-0.5F, -1.25F, -2.0F, -3.0F}) {
    const float h = 1.0F / 256, ref = -1.6F, old = -1.4F;
    const auto at = compute_kl(plugin, {lp}, {ref}, 1, 1, {}, {old});
    const auto up = compute_kl(plugin, {lp + h}, {ref}, 1, 1, {}, {old});
    const auto down = compute_kl(plugin, {lp - h}, {ref}, 1, 1, {}, {old});
    EXPECT_NEAR(at.grad[0], (up.loss[0] - down.loss[0]) / (2 * h), 2e-4 * (1 + std::abs(at.grad[0]))) << lp;
  }
}

// The ratio is the row's: a masked token is not in its mean, and its gradient goes to every other token of the row.
TEST(K3RowRatio, GradientIsTheDifferenceQuotientOfTheRow) {
  Kl plugin(kl_estimator("k3_row_ratio"), {{"max_log_ratio", "none"}, {"max_kl", "none"}});
  const std::vector<float> lp = {-0.5F, -1.25F, -2.0F, -3.0F, -1.0F}, ref = {-0.75F, -1, -2.5F, -2.75F, -0.25F},
                           old = {-0.75F, -1.5F, -1.75F, -9, -1.5F};
  const std::vector<uint8_t> mask = {1, 1, 1, 0, 1};
  const auto at = [&](std::vector<float> log_prob) { return compute_kl(plugin, log_prob, ref, 1, 1, mask, old); };
  const auto here = at(lp);
  const double s = std::exp((0.25 + 0.25 - 0.25 + 0.5) / 4);
  EXPECT_NEAR(here.loss[0], s * (std::exp(-0.25) + 0.25 - 1), 1e-6);
  EXPECT_EQ(here.loss[3], 0.0F);
  EXPECT_EQ(here.grad[3], 0.0F);
  const auto sum = [](const auto& out) {
    double total = 0;
    for (const float x : out.loss) total += double(x);
    return total;
  };
  for (const size_t t : {0U, 1U, 2U, 4U}) {
    const float h = 1.0F / 256;
    std::vector<float> up = lp, down = lp;
    up[t] += h;
    down[t] -= h;
    EXPECT_NEAR(here.grad[t], (sum(at(up)) - sum(at(down))) / (2 * double(h)), 2e-4) << t;
  }
}

// Two policies over eight tokens, and many samples.
struct Sampling {
  static constexpr size_t kTokens = 8, kSamples = 200'000;
  std::mt19937_64 random;
  std::vector<double> policy, reference, old;
  double kl = 0, square = 0;  // KL(policy || reference), E[log ratio^2 / 2]
  std::vector<double> slope;  // d KL / d logit of the policy

  explicit Sampling(uint64_t seed) : random(seed), policy(drawn()), reference(drawn()), old(drawn()), slope(kTokens) {
    for (size_t a = 0; a < kTokens; ++a) {
      const double d = std::log(policy[a] / reference[a]);
      kl += policy[a] * d;
      square += policy[a] * d * d / 2;
    }
    for (size_t a = 0; a < kTokens; ++a) slope[a] = policy[a] * (std::log(policy[a] / reference[a]) - kl);
  }
  std::vector<double> drawn() {
    std::normal_distribution<double> normal(0, 0.6);
    std::vector<double> p(kTokens);
    double sum = 0;
    for (double& x : p) sum += x = std::exp(normal(random));
    for (double& x : p) x /= sum;
    return p;
  }

  struct Estimate {
    double mean = 0, error = 0;  // mean of the value; standard error of that mean
    std::vector<double> slope;   // gradient with respect to the logits
    double slope_error = 0;
  };
  Estimate estimate(const std::string& name, const std::vector<double>& sampler) {
    std::discrete_distribution<size_t> draw(sampler.begin(), sampler.end());
    std::vector<size_t> token(kSamples);
    std::vector<float> lp, ref, before;
    for (size_t& a : token) {
      a = draw(random);
      lp.push_back(float(std::log(policy[a])));
      ref.push_back(float(std::log(reference[a])));
      before.push_back(float(std::log(sampler[a])));
    }
    Kl plugin(kl_estimator(name), {{"max_log_ratio", "none"}, {"max_kl", "none"}});
    const auto out = compute_kl(plugin, lp, ref, 1, 1, {}, before);
    Estimate e;
    e.slope.assign(kTokens, 0);
    double squares = 0, slope_squares = 0;
    for (size_t i = 0; i < kSamples; ++i) {
      e.mean += out.loss[i] / double(kSamples);
      squares += double(out.loss[i]) * out.loss[i] / double(kSamples);
      slope_squares += double(out.grad[i]) * out.grad[i] / double(kSamples);
      for (size_t a = 0; a < kTokens; ++a)  // d log policy(token) / d logit(a)
        e.slope[a] += double(out.grad[i]) * ((token[i] == a ? 1.0 : 0.0) - policy[a]) / double(kSamples);
    }
    e.error = std::sqrt((squares - e.mean * e.mean) / double(kSamples));
    e.slope_error = std::sqrt(slope_squares / double(kSamples));
    return e;
  }
};

// Each seed has other policies. MORTISE_LONG=1 takes four of them.
uint64_t num_seeds() { return is_long() ? 4 : 1; }
constexpr const char* kOnlyNumbers = "the release build compares these means";

TEST(KlBias, OfTheValueBySampling) {
  if (kSanitized) GTEST_SKIP() << kOnlyNumbers;
  for (uint64_t seed = 1; seed <= num_seeds(); ++seed) {
    Sampling s(seed);
    for (const char* name : {"k1", "k3", "k3_ratio"}) {  // unbiased
      const auto e = s.estimate(name, s.policy);
      EXPECT_NEAR(e.mean, s.kl, 5 * e.error) << name;
    }
    const auto k2 = s.estimate("k2", s.policy);
    EXPECT_NEAR(k2.mean, s.square, 5 * k2.error);
    EXPECT_GT(s.estimate("k1", s.policy).error, 1.2 * s.estimate("k3", s.policy).error)
        << "k3 is the one of low variance";
    // Off-policy, the ratio keeps k3 unbiased; without it the mean is another number.
    const auto with = s.estimate("k3_ratio", s.old), without = s.estimate("k3", s.old);
    EXPECT_NEAR(with.mean, s.kl, 5 * with.error);
    EXPECT_GT(std::abs(without.mean - s.kl), 5 * without.error);
  }
}

// As a loss term: in expectation k2 has the gradient of the KL, k1 has none, and k3_ratio has it off-policy too.
TEST(KlBias, OfTheGradientBySampling) {
  if (kSanitized) GTEST_SKIP() << kOnlyNumbers;
  for (uint64_t seed = 1; seed <= num_seeds(); ++seed) {
    Sampling s(seed);
    const auto k1 = s.estimate("k1", s.policy), k2 = s.estimate("k2", s.policy), off = s.estimate("k3_ratio", s.old);
    double largest = 0;
    for (size_t a = 0; a < Sampling::kTokens; ++a) {
      EXPECT_NEAR(k1.slope[a], 0, 5 * k1.slope_error);
      EXPECT_NEAR(k2.slope[a], s.slope[a], 5 * k2.slope_error);
      EXPECT_NEAR(off.slope[a], s.slope[a], 5 * off.slope_error);
      largest = std::max(largest, std::abs(s.slope[a]));
    }
    EXPECT_GT(largest, 20 * k2.slope_error) << "the test would see a wrong gradient";
  }
}

}  // namespace
}  // namespace mortise::test
