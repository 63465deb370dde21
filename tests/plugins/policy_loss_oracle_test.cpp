// Every policy loss against its oracle: values, and gradients as difference quotients of the oracle.
#include <gtest/gtest.h>

#include <array>
#include <iomanip>
#include <random>
#include <sstream>

#include "loss_call.h"
#include "policy_loss_oracle.h"
#include "support/close_to.h"

namespace mortise::test {
namespace {

struct Setting {
  std::string loss;
  OracleParams params;
  double spread = 0.3;  // spread of the log ratios
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.loss;
  for (const auto& [name, value] : s.params) *out << " " << name << "=" << value;
}

// Groups of four rows, advantages of either sign that vary a little within the row.
OracleBatch random_batch(uint64_t seed, double spread) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  OracleBatch batch;
  for (int i = 0; i < 8; ++i) {
    OracleRow row;
    row.group = i / 4;
    const float adv = normal(random);
    const size_t n = 1 + random() % 9;
    for (size_t t = 0; t < n; ++t) {
      const float old = -0.1F - std::abs(normal(random));
      row.old.push_back(old);
      row.lp.push_back(std::min(-0.01F, old + float(spread) * normal(random)));
      row.rollout.push_back(old + 0.2F * normal(random));
      row.adv.push_back(adv + 0.1F * normal(random));
      row.rollout_weight.push_back(0.5F + float(random() % 1000) / 1000);
      row.weight.push_back(0.1F + float(random() % 1000) / 1000);
    }
    row.held = row.lp;
    batch.push_back(row);
  }
  return batch;
}

// The same with rubbish at masked tokens in between, and an empty row at the end.
LossInput with_holes(const OracleBatch& batch) {
  LossInput in;
  const auto push = [&](double lp, double old, double rollout, double adv, double is, double weight, bool active) {
    in.log_prob.push_back(float(lp)), in.old_log_prob.push_back(float(old)),
        in.rollout_log_prob.push_back(float(rollout));
    in.advantages.push_back(float(adv)), in.rollout_is_weights.push_back(float(is)), in.weight.push_back(float(weight));
    in.mask.push_back(active ? 1 : 0);
  };
  for (const OracleRow& row : batch) {
    for (size_t t = 0; t < row.size(); ++t) {
      if ((t + size_t(row.group)) % 3 == 1) push(NAN, 1e30, -INFINITY, NAN, NAN, NAN, false);
      push(row.lp[t], row.old[t], row.rollout[t], row.adv[t], row.rollout_weight[t], row.weight[t], true);
    }
    in.row_offsets.push_back(int64_t(in.mask.size()));
    in.group_index.push_back(row.group + 1'000'000'007);
  }
  in.row_offsets.push_back(in.row_offsets.back());
  in.group_index.push_back(5);
  return in;
}

std::vector<double> unmasked(const std::vector<float>& values, const LossInput& in) {
  std::vector<double> out;
  for (size_t i = 0; i < values.size(); ++i) {
    if (in.mask[i] != 0) out.push_back(values[i]);
  }
  return out;
}
std::vector<double> flat(const TokenLosses& values) {
  std::vector<double> out;
  for (const auto& row : values) out.insert(out.end(), row.begin(), row.end());
  return out;
}

std::map<std::string, std::string> spelt(const Setting& setting) {
  std::map<std::string, std::string> out;
  for (const auto& [name, value] : setting.params) {
    std::ostringstream text;
    text << std::setprecision(17) << value;
    const bool is_flag = name == "fipo_clip_high_only" || name == "m2_clippable_only";
    out[name] = is_flag ? (value != 0 ? "true" : "false") : text.str();
  }
  // The oracle of gspo is the derivative of the sequence's ratio; the token form is gspo_token's.
  if (setting.loss == "gspo") out["gradient"] = "row";
  return out;
}

class LossOracle : public testing::TestWithParam<Setting> {};

TEST_P(LossOracle, ValuesAndGradients) {
  const Oracle& oracle = policy_loss_oracles().at(GetParam().loss);
  PolicyLoss plugin(policy_loss(GetParam().loss), spelt(GetParam()));
  ASSERT_EQ(plugin.status, 0) << plugin.call.error;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    const OracleBatch batch = random_batch(seed, GetParam().spread);
    const LossInput in = with_holes(batch);
    const LossOutput got = compute(plugin, in);
    EXPECT_TRUE(all_close(unmasked(got.loss, in), flat(oracle(batch, GetParam().params)), 1e-6));
    EXPECT_TRUE(all_close(unmasked(got.grad, in), flat(oracle_gradient(oracle, batch, GetParam().params)), 1e-5));
  }
}

INSTANTIATE_TEST_SUITE_P(
    PolicyLoss, LossOracle,
    testing::Values(
        Setting{"vanilla", {}}, Setting{"vanilla", {{"clip_ratio_c", 1.3}, {"clip_ratio_high", 0.1}}},
        Setting{"vanilla", {{"delta", 1.25}, {"clip_ratio_c", 0}}}, Setting{"vanilla", {{"delta", 1.1}}},
        Setting{"gspo", {}}, Setting{"gspo", {{"clip_ratio_low", 0.01}, {"clip_ratio_high", 0.02}, {"delta", 1.05}}},
        Setting{"gspo_token", {}}, Setting{"gspo_token", {{"clip_ratio", 0.05}}},
        Setting{"luspo", {{"clip_ratio", 0.1}}}, Setting{"sapo", {}},
        Setting{"sapo", {{"tau_pos", 3}, {"tau_neg", 0.4}}}, Setting{"cispo", {}},
        Setting{"cispo", {{"clip_ratio_low", 10}, {"clip_ratio_high", 0.2}}}, Setting{"cispo", {{"cap", 1.1}}},
        Setting{"cispo_sequence", {}}, Setting{"cispo_sequence", {{"clip_ratio", 0.05}}},
        Setting{"cispo_sequence", {{"cap", 1.02}}}, Setting{"sapo_sequence", {}},
        Setting{"sapo_sequence", {{"tau_pos", 3}, {"tau_neg", 0.4}}}, Setting{"geo_mean", {{"clip_ratio", 0.4}}},
        Setting{"geo_mean", {{"clip_ratio_low", 0.1}}}, Setting{"gpg", {}}, Setting{"reinforce", {}},
        Setting{"kl_cov", {}}, Setting{"kl_cov", {{"kl_cov_ratio", 0.2}, {"ppo_kl_coef", 1}}},
        Setting{"dppo_tv", {{"clip_ratio", 0.05}}, 1},
        Setting{"dppo_tv", {{"clip_ratio_low", 0.01}, {"clip_ratio_c", 1.1}}},
        Setting{"dppo_kl", {{"clip_ratio", 0.02}}, 1}, Setting{"dppo_kl", {{"clip_ratio_high", 0.001}}},
        Setting{"dro", {{"dro_beta", 0.7}}}, Setting{"vespo", {}, 0.1},
        Setting{"vespo", {{"vespo_k_pos", 1}, {"vespo_lambda_neg", 0.5}}, 0.1}, Setting{"fipo", {}},
        Setting{"fipo",
                {{"fipo_decay_rate", 2}, {"fipo_clip_range", 0.7}, {"fipo_clip_high_only", 0}, {"delta", 1.4}},
                0.5},
        Setting{"fipo", {{"fipo_safety_threshold", 1.1}, {"fipo_clip_high_only", 0}}}, Setting{"real", {}},
        Setting{"real", {{"real_tau", 0.1}}, 1}, Setting{"topr", {}}, Setting{"aipo", {}},
        Setting{"aipo", {{"rho", 1.05}}}, Setting{"m2po", {}},
        Setting{"m2po", {{"m2_threshold", 0.01}, {"ppo_clip", 0.1}}}, Setting{"m2po", {}, 3},
        Setting{"m2po", {{"m2_threshold", 0}}}, Setting{"m2po", {{"m2_clippable_only", 1}}},
        Setting{"m2po", {{"m2_clippable_only", 1}}, 3}, Setting{"decoupled", {}},
        Setting{"decoupled", {{"behav_imp_weight_cap", 1.1}, {"clip_ratio_high", 0.1}}}));

TEST(LossOracles, CoverEveryLossButTheRandomOne) {
  const mortise_pack* pack = load_pack(pack_path("policy_loss"));
  for (uint32_t i = 0; i < pack->num_plugins; ++i) {
    const std::string name = pack->plugins[i]->name;
    EXPECT_TRUE(policy_loss_oracles().count(name) != 0 || name == "clip_cov") << name;
  }
}

// --- clip_cov: which tokens is drawn by lot, so the draw is checked and then the loss given the draw
// ----------------------

struct ClipCovCase {
  OracleBatch batch;
  LossInput in;
  double adv_mean = 0, lp_mean = 0, tokens = 0;

  explicit ClipCovCase(uint64_t seed) : batch(random_batch(seed, 0.3)), in(with_holes(batch)) {
    for (const OracleRow& row : batch) {
      for (size_t t = 0; t < row.size(); ++t) adv_mean += row.adv[t], lp_mean += row.lp[t], tokens += 1;
    }
    adv_mean /= tokens, lp_mean /= tokens;
  }
  bool candidate(const OracleRow& row, size_t t, double lb, double ub) const {
    const double r = std::exp(row.lp[t] - row.old[t]), cov = (row.adv[t] - adv_mean) * (row.lp[t] - lp_mean);
    const bool clipped = (row.adv[t] > 0 && r > 1.2) || (row.adv[t] < 0 && r < 0.8);
    return cov > lb && cov < ub && !clipped;
  }
};

TEST(ClipCov, DropsTheAskedNumberOfCandidatesAndIsVanillaElsewhere) {
  PolicyLoss plugin(policy_loss("clip_cov"),
                    {{"clip_cov_ratio", "0.1"}, {"clip_cov_lb", "0.02"}, {"clip_cov_ub", "1.5"}});
  PolicyLoss vanilla(policy_loss("vanilla"), {{"clip_ratio_c", "0"}});
  size_t cases_with_choice = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const ClipCovCase c(seed);
    const LossOutput got = compute(plugin, c.in), plain = compute(vanilla, c.in);
    const auto loss = unmasked(got.loss, c.in), full = unmasked(plain.loss, c.in);
    const auto grad = unmasked(got.grad, c.in), full_grad = unmasked(plain.grad, c.in);
    size_t candidates = 0, dropped = 0, at = 0;
    for (const OracleRow& row : c.batch) {
      for (size_t t = 0; t < row.size(); ++t, ++at) {
        const bool candidate = c.candidate(row, t, 0.02, 1.5);
        candidates += candidate;
        if (loss[at] == 0 && full[at] != 0) {
          EXPECT_TRUE(candidate) << at;
          EXPECT_EQ(grad[at], 0.0) << at;
          ++dropped;
        } else {
          // One computes in double, the other in float32.
          EXPECT_NEAR(loss[at], full[at], 1e-6 * (1 + std::abs(full[at]))) << at;
          EXPECT_NEAR(grad[at], full_grad[at], 1e-6 * (1 + std::abs(full_grad[at]))) << at;
        }
      }
    }
    const size_t wanted = std::max<size_t>(1, size_t(0.1 * c.tokens));
    EXPECT_EQ(dropped, std::min(wanted, candidates));
    EXPECT_DOUBLE_EQ(plugin.call.metrics.at("actor/pg_clipfrac").sum, double(dropped));
    cases_with_choice += candidates > wanted;
  }
  EXPECT_GT(cases_with_choice, 5U) << "the draw was hardly tried";
}

// Every candidate has the same chance: over many tokens each place is drawn about equally often.
TEST(ClipCov, TheDrawIsFair) {
  PolicyLoss plugin(policy_loss("clip_cov"), {{"clip_cov_ratio", "0.25"}, {"clip_cov_lb", "0"}});
  LossInput in;
  constexpr int kTokens = 16000, kRowTokens = 400;
  while (in.row_offsets.back() < kTokens) {
    for (int t = 0; t < kRowTokens; ++t) {  // the covariance is 1 everywhere
      const float sign = t % 2 == 0 ? 1.0F : -1.0F;
      in.log_prob.push_back(-2 + sign), in.old_log_prob.push_back(-2 + sign), in.advantages.push_back(sign);
      in.mask.push_back(1), in.weight.push_back(1);
    }
    in.row_offsets.push_back(int64_t(in.mask.size()));
  }
  const LossOutput out = compute(plugin, in);
  std::array<int, 4> dropped{};
  for (size_t i = 0; i < in.mask.size(); ++i) dropped[i * 4 / kRowTokens % 4] += out.loss[i] == 0;
  EXPECT_EQ(dropped[0] + dropped[1] + dropped[2] + dropped[3], kTokens / 4);
  for (const int n : dropped) EXPECT_NEAR(n / (kTokens / 4.0), 0.25, 0.03);
}

}  // namespace
}  // namespace mortise::test
