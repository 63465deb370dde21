// Properties of every built-in advantage estimator over drawn batches: nothing depends on the order of the rows, on
// padding, or, where only the prompt's rows matter, on what else is in the batch; sums that theory says are zero;
// identities between the algorithms.
#include "property_batches.h"

namespace mortise::test {
namespace {

// Rows of `b`, reordered or some of them. place[i] is the position of the new row i in `b`.
AdvantageCase reordered(const AdvantageCase& b, const std::vector<size_t>& place) {
  AdvantageCase out;
  out.weights = b.weights;
  const auto tokens = [&](size_t row, const auto& from, auto& to) {
    to.insert(to.end(), from.begin() + b.row_offsets[row], from.begin() + b.row_offsets[row + 1]);
  };
  for (const size_t row : place) {
    out.group_index.push_back(b.group_index[row]);
    out.row_offsets.push_back(out.row_offsets.back() + int64_t(b.end(row) - b.begin(row)));
    tokens(row, b.rewards, out.rewards);
    tokens(row, b.mask, out.mask);
    tokens(row, b.values, out.values);
    tokens(row, b.old_log_prob, out.old_log_prob);
    tokens(row, b.sum_pi_squared, out.sum_pi_squared);
    tokens(row, b.is_weights, out.is_weights);
    out.columns.insert(out.columns.end(), {b.columns[2 * row], b.columns[2 * row + 1]});
    out.baselines.push_back(b.baselines[row]);
    if (!b.valid.empty()) out.valid.push_back(b.valid[row]);
  }
  return out;
}

// Three masked tokens behind every row, with NaN wherever a masked token may hold anything.
AdvantageCase padded(const AdvantageCase& b) {
  AdvantageCase out = b;
  out.row_offsets = {0};
  out.mask.clear();
  for (auto* tensor : {&out.rewards, &out.values, &out.old_log_prob, &out.sum_pi_squared, &out.is_weights})
    tensor->clear();
  for (size_t row = 0; row < b.num_rows(); ++row) {
    for (size_t t = b.begin(row); t < b.end(row) + 3; ++t) {
      const bool real = t < b.end(row);
      out.mask.push_back(uint8_t(real ? b.mask[t] : 0));
      out.rewards.push_back(real ? b.rewards[t] : 0);
      out.values.push_back(real ? b.values[t] : NAN);
      out.old_log_prob.push_back(real ? b.old_log_prob[t] : NAN);
      out.sum_pi_squared.push_back(real ? b.sum_pi_squared[t] : NAN);
      out.is_weights.push_back(real ? b.is_weights[t] : NAN);
    }
    out.row_offsets.push_back(int64_t(out.mask.size()));
  }
  return out;
}

std::vector<size_t> all_rows(const AdvantageCase& b) {
  std::vector<size_t> rows(b.num_rows());
  std::iota(rows.begin(), rows.end(), size_t(0));
  return rows;
}

// One row in eight has no reward.
AdvantageCase with_invalid_rows(AdvantageCase b, uint32_t seed) {
  Numbers numbers(seed);
  for (size_t row = 0; row < b.num_rows(); ++row) b.valid.push_back(numbers.chance(0.125) ? 0 : 1);
  return b;
}

// The numbers of `part`, whose row i is row rows[i] of the whole. The tolerance is relative to the largest, as for the
// goldens.
void expect_rows(const AdvantageCase& whole, const std::vector<float>& values, const std::vector<size_t>& rows,
                 const std::vector<float>& part, const std::string& what) {
  double largest = 1e-30;
  for (const float v : values) largest = std::max(largest, std::abs(double(v)));
  size_t at = 0;
  for (const size_t row : rows) {
    for (size_t t = whole.begin(row); t < whole.end(row); ++t, ++at) {
      const double a = double(part[at]), b = double(values[t]);
      if (!(std::abs(a - b) <= 1e-5 * largest)) expect_near(a, b, 0, what, t);
    }
  }
  RC_ASSERT(at == part.size());
}

RC_GTEST_PROP(AdvantageEstimators, DoNotSeeTheOrderOfRows, (const Rows& drawn, uint32_t seed)) {
  const AdvantageCase b = with_invalid_rows(advantage_batch(drawn, seed % 2 == 0), seed);
  const std::vector<size_t> order = Numbers(seed).order(b.num_rows());
  const AdvantageCase mixed = reordered(b, order);
  for (const std::string& name : names_of("advantage_estimator")) {
    const AdvantageResult plain = compute(name, {}, b), other = compute(name, {}, mixed);
    expect_rows(b, plain.advantages, order, other.advantages, name);
    expect_rows(b, plain.returns, order, other.returns, name + ", returns");
  }
}

RC_GTEST_PROP(AdvantageEstimators, DoNotSeePadding, (const Rows& drawn, uint32_t seed)) {
  const AdvantageCase b = with_invalid_rows(advantage_batch(drawn), seed), wide = padded(b);
  for (const std::string& name : names_of("advantage_estimator")) {
    const AdvantageResult plain = compute(name, {}, b), other = compute(name, {}, wide);
    RC_ASSERT(kept(wide, other.advantages) == kept(b, plain.advantages));
    RC_ASSERT(kept(wide, other.returns) == kept(b, plain.returns));
  }
}

// Estimators that use only the prompt's rows: a step may be scored in any pieces that contain whole prompts.
RC_GTEST_PROP(AdvantageEstimators, OfPromptsDoNotSeeTheSplit, (const Rows& drawn, uint32_t seed)) {
  const AdvantageCase b = with_invalid_rows(advantage_batch(drawn), seed);
  const std::pair<const char*, Params> estimators[] = {{"grpo", {}},
                                                       {"grpo_vectorized", {}},
                                                       {"dr_grpo", {}},
                                                       {"grpo_passk", {}},
                                                       {"rloo", {}},
                                                       {"rloo_vectorized", {}},
                                                       {"opo", {}},
                                                       {"maxrl", {}},
                                                       {"remax", {}},
                                                       {"optimal_token_baseline", {}},
                                                       {"tir_optimal_token_baseline", {}},
                                                       {"gpg", {{"alpha", "one"}}},
                                                       {"gdpo", {{"whiten", "none"}}},
                                                       {"bnpo", {{"alpha", "1.5"}, {"beta", "2.0"}}},
                                                       {"gae", {{"whiten", "false"}}}};
  for (const auto& [name, params] : estimators) {
    const AdvantageResult whole = compute(name, params, b);
    for (uint64_t piece = 0; piece < 2; ++piece) {
      std::vector<size_t> mine;
      for (const size_t row : all_rows(b)) {
        if (Numbers(uint64_t(b.group_index[row]) + seed).next() % 2 == piece) mine.push_back(row);
      }
      const AdvantageResult part = compute(name, params, reordered(b, mine));
      expect_rows(b, whole.advantages, mine, part.advantages, name);
      expect_rows(b, whole.returns, mine, part.returns, std::string(name) + ", returns");
    }
  }
}

std::map<int64_t, int> group_sizes(const AdvantageCase& b) {
  std::map<int64_t, int> sizes;
  for (const int64_t group : b.group_index) ++sizes[group];
  return sizes;
}

// If the baseline is the mean of the prompt's rows, the advantages of a prompt with several rows add up to 0. opo
// weights the rows by length.
RC_GTEST_PROP(AdvantageSums, AreZeroInEveryPrompt, (const Rows& drawn, uint32_t seed)) {
  const AdvantageCase b = with_invalid_rows(advantage_batch(drawn, seed % 2 == 0), seed);
  const std::map<int64_t, int> sizes = group_sizes(b);
  const std::pair<const char*, Params> estimators[] = {{"grpo", {}},
                                                       {"grpo", {{"std", "batch"}}},
                                                       {"grpo_vectorized", {}},
                                                       {"dr_grpo", {}},
                                                       {"rloo", {}},
                                                       {"rloo_vectorized", {}},
                                                       {"gpg", {}},
                                                       {"maxrl", {}},
                                                       {"bnpo", {}},
                                                       {"gdpo", {{"whiten", "none"}}},
                                                       {"opo", {}}};
  for (const auto& [name, params] : estimators) {
    const std::vector<float> a = compute(name, params, b).advantages;
    const bool by_length = std::string_view(name) == "opo";
    std::map<int64_t, double> sums, weights;
    for (size_t row = 0; row < b.num_rows(); ++row) {
      double weight = 1;
      if (by_length)
        weight = std::accumulate(b.mask.begin() + b.row_offsets[row], b.mask.begin() + b.row_offsets[row + 1], 0.0);
      const double advantage = double(a[b.end(row) - 1]);  // the last token is never masked
      sums[b.group_index[row]] += weight * advantage;
      weights[b.group_index[row]] += weight * std::abs(advantage);
    }
    for (const auto& [group, sum] : sums) {
      if (sizes.at(group) == 1 || std::abs(sum) <= 1e-5 * weights[group] + 1e-6) continue;
      RC_FAIL(std::string(name) + ": the sum is " + std::to_string(sum) + " in prompt " + std::to_string(group));
    }
  }
}

void expect_same(const AdvantageCase& b, const std::vector<float>& got, std::vector<float> want, double factor,
                 const std::string& what) {
  for (float& x : want) x = float(double(x) * factor);
  expect_rows(b, want, all_rows(b), got, what);
}

// Leaving one out of n is n / (n - 1) times the distance from the mean.
RC_GTEST_PROP(AdvantageIdentities, RlooIsDrGrpoTimesNOverNMinusOne, (const Rows& drawn)) {
  const AdvantageCase b = advantage_batch(drawn);
  const std::vector<float> rloo = compute("rloo", {}, b).advantages;
  const std::vector<float> mean = compute("dr_grpo", {{"single", "zero"}}, b).advantages;
  for (const auto& [group, n] : group_sizes(b)) {
    std::vector<size_t> rows;
    for (size_t row = 0; row < b.num_rows(); ++row) {
      if (b.group_index[row] == group) rows.push_back(row);
    }
    if (n == 1) continue;
    for (const size_t row : rows) {
      const double want = double(mean[b.end(row) - 1]) * n / (n - 1), got = double(rloo[b.end(row) - 1]);
      if (std::abs(got - want) > 1e-6) expect_near(got, want, 1e-5, "rloo", b.end(row) - 1);
    }
  }
}

// The Beta density is 1 at (1, 1), and at (3/2, 3/2) 8/pi times the deviation of rewards of 0 and 1.
RC_GTEST_PROP(AdvantageIdentities, BnpoIsReinforceWithBaselineOrGrpo, (const Rows& drawn)) {
  const AdvantageCase any = advantage_batch(drawn);
  expect_same(any, compute("bnpo", {{"alpha", "1.0"}, {"beta", "1.0"}}, any).advantages,
              compute("dr_grpo", {{"single", "zero"}}, any).advantages, 1, "alpha = beta = 1");
  const AdvantageCase binary = advantage_batch(drawn, true);
  const Params grpo = {{"ddof", "0"}, {"epsilon", "0.0"}, {"single", "zero"}};
  expect_same(binary, compute("bnpo", {{"alpha", "1.5"}, {"beta", "1.5"}}, binary).advantages,
              compute("grpo", grpo, binary).advantages, M_PI / 8, "alpha = beta = 3/2");
}

}  // namespace
}  // namespace mortise::test
