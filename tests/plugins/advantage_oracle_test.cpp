// Advantage estimators, and options of them, that no tensor of tests/golden covers: against oracles in float64 that
// follow the papers' definitions term by term, and published numbers.
#include <functional>

#include "advantage_call.h"
#include "support/close_to.h"

namespace mortise::test {
namespace {

using Doubles = std::vector<double>;

double mean(const Doubles& x) { return std::accumulate(x.begin(), x.end(), 0.0) / double(x.size()); }
double variance(const Doubles& x, double ddof = 1) {
  double square = 0;
  for (const double v : x) square += v * v;
  return (square - double(x.size()) * mean(x) * mean(x)) / (double(x.size()) - ddof);
}

// The unmasked tokens of a row.
std::vector<size_t> kept(const AdvantageCase& b, size_t row) {
  std::vector<size_t> out;
  for (size_t t = b.begin(row); t < b.end(row); ++t) {
    if (b.mask[t] != 0) out.push_back(t);
  }
  return out;
}
std::vector<size_t> all_kept(const AdvantageCase& b) {
  std::vector<size_t> out;
  for (size_t row = 0; row < b.num_rows(); ++row) {
    for (const size_t t : kept(b, row)) out.push_back(t);
  }
  return out;
}

double outcome(const AdvantageCase& b, size_t row) {
  return std::accumulate(b.rewards.begin() + b.row_offsets[row], b.rewards.begin() + b.row_offsets[row + 1], 0.0);
}
std::vector<size_t> group_of(const AdvantageCase& b, size_t row) {
  std::vector<size_t> out;
  for (size_t i = 0; i < b.num_rows(); ++i) {
    if (b.group_index[i] == b.group_index[row]) out.push_back(i);
  }
  return out;
}
Doubles values_of(const std::vector<size_t>& rows, const std::function<double(size_t)>& value) {
  Doubles out;
  for (const size_t row : rows) out.push_back(value(row));
  return out;
}

// expected(row) at every unmasked token, 0 at the others.
void expect_rows(const AdvantageCase& b, const std::vector<float>& got, const std::function<double(size_t)>& expected) {
  Doubles want(b.mask.size());
  for (size_t row = 0; row < b.num_rows(); ++row) {
    for (const size_t t : kept(b, row)) want[t] = expected(row);
  }
  EXPECT_TRUE(all_close(got, want, 1e-5));
}

// (x - mean) / sqrt(variance + 1e-8) over unmasked tokens.
Doubles whitened(const AdvantageCase& b, Doubles x) {
  Doubles counted;
  for (const size_t t : all_kept(b)) counted.push_back(x[t]);
  const double centre = mean(counted), scale = std::sqrt(variance(counted) + 1e-8);
  for (double& value : x) value = (value - centre) / scale;
  return x;
}

// a_t = sum_l (gamma lam)^l delta_(t+l) over the row's unmasked tokens, by the definition.
Doubles gae_terms(const AdvantageCase& b, double gamma, const std::function<double(size_t)>& lambda) {
  Doubles out(b.mask.size());
  for (size_t row = 0; row < b.num_rows(); ++row) {
    const auto tokens = kept(b, row);
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (size_t j = i; j < tokens.size(); ++j) {
        const double next = j + 1 < tokens.size() ? double(b.values[tokens[j + 1]]) : 0.0;
        const double delta = double(b.rewards[tokens[j]]) + gamma * next - double(b.values[tokens[j]]);
        out[tokens[i]] += std::pow(gamma * lambda(tokens.size()), double(j - i)) * delta;
      }
    }
  }
  return out;
}

void expect_kept(const AdvantageCase& b, const std::vector<float>& got, const Doubles& want) {
  Doubles a, w;
  for (const size_t t : all_kept(b)) a.push_back(double(got[t])), w.push_back(want[t]);
  EXPECT_TRUE(all_close(a, w, 1e-5));
}

class AdvantageOracle : public testing::TestWithParam<uint32_t> {
 protected:
  AdvantageCase b = random_case(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Seeds, AdvantageOracle, testing::Values(1U, 2U, 3U, 4U));

TEST_P(AdvantageOracle, GaeDecoupled) {
  const auto got = compute("gae", {{"gamma", "0.99"}, {"lam", "0.9"}, {"lam_critic", "1.0"}}, b);
  expect_kept(b, got.advantages, whitened(b, gae_terms(b, 0.99, [](size_t) { return 0.9; })));
  Doubles returns = gae_terms(b, 0.99, [](size_t) { return 1.0; });
  for (size_t t = 0; t < returns.size(); ++t) returns[t] += double(b.values[t]);
  expect_kept(b, got.returns, returns);
}

TEST_P(AdvantageOracle, GaeLengthAdaptive) {
  const auto got =
      compute("gae", {{"length_adaptive_alpha", "0.2"}, {"lam", "0.5"}, {"whiten", "false"}, {"gamma", "0.95"}}, b);
  expect_kept(b, got.advantages, gae_terms(b, 0.95, [](size_t n) { return std::max(0.0, 1 - 1 / (0.2 * double(n))); }));
  Doubles returns = gae_terms(b, 0.95, [](size_t) { return 0.5; });
  for (size_t t = 0; t < returns.size(); ++t) returns[t] += double(b.values[t]);
  expect_kept(b, got.returns, returns);
}

// Masked tokens passed over: the same as if they were not there.
TEST_P(AdvantageOracle, ReinforcePlusPlusSkipsMaskedTokens) {
  const auto got = compute("reinforce_plus_plus", {{"masked_tokens", "skip"}, {"gamma", "0.9"}}, b);
  Doubles returns(b.mask.size());
  for (size_t row = 0; row < b.num_rows(); ++row) {
    const auto tokens = kept(b, row);
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (size_t j = i; j < tokens.size(); ++j)
        returns[tokens[i]] += std::pow(0.9, double(j - i)) * double(b.rewards[tokens[j]]);
    }
  }
  expect_kept(b, got.returns, returns);
  expect_kept(b, got.advantages, whitened(b, returns));
}

TEST_P(AdvantageOracle, GrpoWithDeviationsOfTheBatch) {
  std::vector<size_t> rows(b.num_rows());
  std::iota(rows.begin(), rows.end(), 0);
  const auto reward = [&](size_t row) { return outcome(b, row); };
  const auto centred = [&](size_t row) {
    const auto group = group_of(b, row);
    return group.size() == 1 ? 0.0 : reward(row) - mean(values_of(group, reward));
  };
  const double raw = std::sqrt(variance(values_of(rows, reward)));
  expect_rows(b, compute("grpo", {{"std", "batch"}, {"epsilon", "1e-4"}, {"single", "zero"}}, b).advantages,
              [&](size_t row) { return centred(row) / (raw + 1e-4); });
  const double spread = std::sqrt(variance(values_of(rows, centred)));
  expect_rows(b, compute("grpo", {{"std", "batch_centred"}, {"epsilon", "1e-4"}, {"single", "zero"}}, b).advantages,
              [&](size_t row) { return centred(row) / (spread + 1e-4); });
  expect_rows(b, compute("grpo", {{"ddof", "0"}, {"epsilon", "1e-8"}, {"single", "zero"}}, b).advantages,
              [&](size_t row) {
                const auto group = values_of(group_of(b, row), reward);
                return group.size() == 1 ? 0.0 : centred(row) / (std::sqrt(variance(group, 0)) + 1e-8);
              });
}

TEST(Grpo, DeviationOfABatchOfOneRowIsOne) {
  EXPECT_NEAR(outcomes("grpo", {{"std", "batch"}}, {3})[0], 3, 1e-5);
  EXPECT_EQ(outcomes("grpo", {{"std", "batch"}, {"single", "zero"}}, {3})[0], 0.0F);
}

TEST(GrpoVectorized, FloorsTheVariance) {
  const std::vector<float> rewards = {1.0F, 1.0002F};  // deviation 1.4e-4, under the floor of 1e-3
  const double half = (double(rewards[1]) - double(rewards[0])) / 2;
  const auto a = outcomes("grpo_vectorized", {}, rewards);
  EXPECT_TRUE(all_close(a, Doubles{-half / (1e-3 + 1e-6), half / (1e-3 + 1e-6)}, 1e-5));
  const auto plain = outcomes("grpo_vectorized", {{"min_variance", "0.0"}}, rewards);
  EXPECT_TRUE(all_close(plain, outcomes("grpo", {}, rewards), 1e-7));
}

TEST_P(AdvantageOracle, RlooNormalized) {
  const auto reward = [&](size_t row) { return outcome(b, row); };
  const auto left_out = [&](size_t row) {
    double others = 0;
    const auto group = group_of(b, row);
    for (const size_t other : group) others += other == row ? 0.0 : reward(other);
    return reward(row) - (group.size() > 1 ? others / double(group.size() - 1) : 0.0);
  };
  std::vector<size_t> rows(b.num_rows());
  std::iota(rows.begin(), rows.end(), 0);
  const Doubles all = values_of(rows, left_out);
  expect_rows(b, compute("rloo", {{"normalize_advantages", "true"}}, b).advantages,
              [&](size_t row) { return (left_out(row) - mean(all)) / (std::sqrt(variance(all)) + 1e-4); });
  const double spread = std::sqrt(variance(values_of(rows, reward)));
  expect_rows(b, compute("rloo", {{"std", "batch"}, {"single", "zero"}}, b).advantages,
              [&](size_t row) { return group_of(b, row).size() == 1 ? 0.0 : left_out(row) / (spread + 1e-4); });
}

// Groups with equal rewards have no advantage: alpha = B / (B - M).
TEST(Gpg, ScaleOfThePaper) {
  const std::vector<float> rewards = {1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0};
  const std::vector<int64_t> groups = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2};
  const auto informative = outcomes("gpg", {{"alpha", "informative"}}, rewards, groups);
  EXPECT_TRUE(all_close(informative, Doubles{2.25, -.75, -.75, -.75, 0, 0, 0, 0, 0, 0, 0, 0}, 1e-6));
  const auto nonzero = outcomes("gpg", {{"f_norm", "2.0"}}, rewards, groups);  // 12 rows, 5 of them not 0
  EXPECT_TRUE(all_close(nonzero, Doubles{.9, -.3, -.3, -.3, 0, 0, 0, 0, 0, 0, 0, 0}, 1e-6));
}

// k of n solved: n/k - 1 for a solution, -1 for the others.
TEST(MaxRl, BinaryRewards) {
  for (size_t k = 0; k <= 8; ++k) {
    std::vector<float> rewards(8, 0.0F);
    std::fill_n(rewards.begin(), k, 1.0F);
    const auto a = outcomes("maxrl", {}, rewards);
    for (size_t i = 0; i < 8; ++i) {
      const double expected = k == 0 ? 0.0 : i < k ? 8.0 / double(k) - 1 : -1.0;
      EXPECT_NEAR(a[i], expected, 1e-6) << k << " solved, row " << i;
    }
  }
}

TEST(MaxRl, AMeanOfZeroOrBelowTeachesNothing) {
  EXPECT_EQ(outcomes("maxrl", {}, {-1, 1, -2, 0}), (std::vector<float>{0, 0, 0, 0}));
  EXPECT_EQ(outcomes("maxrl", {}, {-1, 1}), (std::vector<float>{0, 0}));
}

// arXiv:2602.02710. For one parameter with score s = d log P(outcome), the mean of A s over all outcomes of n samples
// is the slope in p of the series of log p, cut: sum_(k=0..n-2) (1 - p)^k. (The mean as baseline costs the last order.)
TEST(MaxRl, ExpectedGradientIsThatOfTheTruncatedLogLikelihood) {
  constexpr int kSamples = 5;
  for (const double p : {0.1, 0.5, 0.8}) {
    double expected_gradient = 0;
    for (int outcome_bits = 0; outcome_bits < 1 << kSamples; ++outcome_bits) {
      std::vector<float> rewards;
      double probability = 1;
      for (int i = 0; i < kSamples; ++i) {
        const bool solved = (outcome_bits >> i & 1) != 0;
        rewards.push_back(solved ? 1.0F : 0.0F);
        probability *= solved ? p : 1 - p;
      }
      const auto a = outcomes("maxrl", {}, rewards);
      for (int i = 0; i < kSamples; ++i) {
        const double score = rewards[size_t(i)] == 1.0F ? 1 / p : -1 / (1 - p);
        expected_gradient += probability * double(a[size_t(i)]) * score / kSamples;
      }
    }
    double slope = 0;
    for (int k = 0; k + 1 < kSamples; ++k) slope += std::pow(1 - p, k);
    EXPECT_NEAR(expected_gradient, slope, 1e-5) << "p = " << p;
  }
}

// TRL's documented numbers for normalize_then_sum.
TEST(Gdpo, AsInTrl) {
  AdvantageCase b = outcome_case({1.1F, 0.2F, 0, 1.05F});
  b.columns = {1, 0.2F, 0, 0.4F, 0, NAN, 1, 0.1F};
  b.weights = {1, 0.5F};
  const Params trl = {{"epsilon", "1e-4"}, {"whiten", "rows"}, {"whiten_epsilon", "1e-4"}, {"single", "zero"}};
  EXPECT_TRUE(all_close(compute("gdpo", trl, b).advantages, Doubles{1.032963, -.437688, -1.181782, .586506}, 1e-6));
}

TEST_P(AdvantageOracle, GdpoAsInVerl) {
  Doubles combined(b.mask.size());
  for (size_t row = 0; row < b.num_rows(); ++row) {
    double c = 0;
    for (size_t k = 0; k < 2; ++k) {
      const auto reward = [&](size_t i) { return double(b.columns[2 * i + k]); };
      const Doubles group = values_of(group_of(b, row), reward);
      const double z = group.size() == 1 ? reward(row) / (1 + 1e-6)
                                         : (reward(row) - mean(group)) / (std::sqrt(variance(group)) + 1e-6);
      c += double(b.weights[k]) * z;
    }
    for (size_t t = b.begin(row); t < b.end(row); ++t) combined[t] = c;
  }
  Doubles want = whitened(b, combined);
  for (size_t t = 0; t < want.size(); ++t) want[t] *= b.mask[t];
  EXPECT_TRUE(all_close(compute("gdpo", {}, b).advantages, want, 1e-5));
}

// Three turns with observations between them: the advantage of a turn's token contains the rewards of that turn and of
// later ones, discounted by sampled tokens alone, and no value or reward of an observation.
TEST(Gae, OverTurnsIsGaeOverTheSampledTokens) {
  const std::vector<uint8_t> mask = {1, 1, 0, 0, 0, 1, 0, 1, 1};
  const std::vector<float> values = {0.5F, -0.25F, 9, 9, 9, 1.0F, 9, 0.75F, 0.125F};
  AdvantageCase turns, compact;
  turns.row_offsets = {0, 9};
  compact.row_offsets = {0, 5};
  turns.group_index = compact.group_index = {0};
  turns.valid = compact.valid = {1};
  turns.mask = mask;
  turns.values = values;
  turns.rewards.assign(9, 0.0F);
  turns.rewards[1] = 0.5F;  // reward of the first turn
  turns.rewards[5] = -1.0F;
  turns.rewards[8] = 2.0F;
  for (size_t t = 0; t < mask.size(); ++t) {
    if (mask[t] == 0) continue;
    compact.mask.push_back(1);
    compact.values.push_back(values[t]);
    compact.rewards.push_back(turns.rewards[t]);
  }
  const Params params = {{"gamma", "0.9"}, {"lam", "0.8"}, {"whiten", "false"}};
  const auto got = compute("gae", params, turns), expected = compute("gae", params, compact);
  size_t at = 0;
  for (size_t t = 0; t < mask.size(); ++t) {
    if (mask[t] == 0) continue;
    EXPECT_EQ(got.advantages[t], expected.advantages[at]) << t;
    EXPECT_EQ(got.returns[t], expected.returns[at++]) << t;
  }
  // By hand, in the second turn: r + gamma V' - V + gamma lambda (the next token's).
  const double last = 2.0 - 0.125, before = 0.9 * 0.125 - 0.75 + 0.72 * last,
               second = -1.0 + 0.9 * 0.75 - 1.0 + 0.72 * before;
  EXPECT_NEAR(got.advantages[5], second, 1e-6);
}

}  // namespace
}  // namespace mortise::test
