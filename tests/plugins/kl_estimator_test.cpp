// KL estimators against verl's numbers, and their edges.
#include <gtest/gtest.h>

#include "golden_case.h"
#include "loss_call.h"
#include "support/close_to.h"

namespace mortise::test {
namespace {

using Kl = Instance<mortise_kl_estimator_vtable>;

const mortise_descriptor* estimator(const std::string& name) {
  return find_plugin(load_pack(pack_path("kl_estimator")), MORTISE_KIND_KL_ESTIMATOR, name);
}

LossOutput compute_kl(Kl& plugin, const std::vector<float>& log_prob, const std::vector<float>& ref, int64_t rows,
                      float weight = 1, std::vector<uint8_t> mask = {}) {
  const auto n = int64_t(log_prob.size());
  if (mask.empty()) mask.assign(log_prob.size(), 1);
  std::vector<int64_t> offsets, id;
  for (int64_t i = 0; i <= rows; ++i) offsets.push_back(rows == 0 ? 0 : i * (n / rows)), id.push_back(i);
  const mortise_layout layout{sizeof layout, 0, rows, n, offsets.data(), id.data(), id.data()};
  const FlatTensor<float> x(log_prob), y(ref), w(std::vector<float>(log_prob.size(), weight));
  const FlatTensor<uint8_t> m(mask);
  FlatTensor<float> kl(std::vector<float>(log_prob.size())), grad(std::vector<float>(log_prob.size()));
  mortise_kl_estimator_in in{};
  in.struct_size = sizeof in;
  in.layout = &layout;
  in.log_prob = x.view();
  in.ref_log_prob = y.view();
  in.response_mask = m.view();
  in.weight = w.view();
  mortise_kl_estimator_out out{};
  out.struct_size = sizeof out;
  out.kl = kl.view();
  out.grad_log_prob = grad.view();
  if (plugin.vtable->compute(plugin.self, &plugin.call, &in, &out) != 0) throw std::runtime_error(plugin.call.error);
  return {kl.values(), grad.values()};
}

class KlGolden : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(KlEstimator, KlGolden, testing::Values("k1", "kl", "k2", "mse", "k3", "low_var_kl", "abs"));

TEST_P(KlGolden, MatchesVerl) {
  const auto cases = golden_cases("kl_estimator", GetParam());
  ASSERT_GE(cases.size(), 2U);
  for (const GoldenCase& c : cases) {
    SCOPED_TRACE(c.file);
    Kl plugin(estimator(GetParam()));
    const auto& lp = c.at("in.log_prob");
    const auto& ref = c.at("in.ref_log_prob");
    const auto got = compute_kl(plugin, {lp.begin(), lp.end()}, {ref.begin(), ref.end()}, c.num_rows);
    EXPECT_TRUE(all_close(got.loss, c.at("expected.kl"), 1e-5));
    EXPECT_TRUE(all_close(got.grad, c.at("expected.grad_log_prob"), 1e-5));
  }
}

TEST_P(KlGolden, WeightScalesTheGradientAlone) {
  Kl plugin(estimator(GetParam()));
  const std::vector<float> lp = {-1, -2, -0.5F}, ref = {-1.5F, -1, -0.25F};
  const auto one = compute_kl(plugin, lp, ref, 1), two = compute_kl(plugin, lp, ref, 1, 2);
  EXPECT_EQ(one.loss, two.loss);
  for (size_t i = 0; i < lp.size(); ++i) EXPECT_FLOAT_EQ(two.grad[i], 2 * one.grad[i]);
}

TEST_P(KlGolden, MaskedIsZero) {
  Kl plugin(estimator(GetParam()));
  const auto out = compute_kl(plugin, {-1, NAN}, {-2, NAN}, 1, 1, {1, 0});
  EXPECT_NE(out.loss[0], 0.0F);
  EXPECT_EQ(out.loss[1], 0.0F);
  EXPECT_EQ(out.grad[1], 0.0F);
  EXPECT_TRUE(compute_kl(plugin, {}, {}, 0).loss.empty());
}

TEST(K3, ClampsAsVerlAndLosesItsGradientThere) {
  Kl plugin(estimator("low_var_kl"));
  const auto out = compute_kl(plugin, {-30, -4}, {-1, -1}, 1);
  EXPECT_FLOAT_EQ(out.loss[0], 10.0F);
  EXPECT_EQ(out.grad[0], 0.0F);
  EXPECT_FLOAT_EQ(out.loss[1], 10.0F);  // exp(3) - 3 - 1 is above it too
  Kl open(estimator("k3"), {{"max_log_ratio", "none"}, {"max_kl", "none"}});
  const auto free = compute_kl(open, {-30, -4}, {-1, -1}, 1);
  EXPECT_FLOAT_EQ(free.loss[1], float(std::exp(3.0) - 4));
  EXPECT_FLOAT_EQ(free.grad[1], float(1 - std::exp(3.0)));
  EXPECT_GT(free.loss[0], 1e12F);
}

}  // namespace
}  // namespace mortise::test
