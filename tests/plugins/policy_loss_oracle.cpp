// Recomputes every policy loss in double, straight from its paper's formula, for the tests to compare with.
#include "policy_loss_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace mortise::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double param(const OracleParams& params, const std::string& name, double fallback) {
  const auto it = params.find(name);
  return it == params.end() ? fallback : it->second;
}
double mean(const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0) / double(x.size()); }

struct Edges {
  explicit Edges(const OracleParams& p)
      : low(1 - param(p, "clip_ratio_low", param(p, "clip_ratio", 0.2))),
        high(1 + param(p, "clip_ratio_high", param(p, "clip_ratio", 0.2))) {}
  double low, high;
};
// The paper's form, a minimum of gains: -min(r A, clip(r) A).
double ppo(double r, double a, double low, double high, double delta = kInf) {
  return -std::min(std::min(r, delta) * a, std::clamp(r, low, high) * a);
}

// A loss of single tokens: f(row, t).
template <class F>
TokenLosses each(const OracleBatch& batch, const F& f) {
  TokenLosses out;
  for (const OracleRow& row : batch) {
    out.emplace_back();
    for (size_t t = 0; t < row.size(); ++t) out.back().push_back(f(row, t));
  }
  return out;
}
double ratio(const OracleRow& row, size_t t) { return std::exp(row.lp[t] - row.old[t]); }
double held_ratio(const OracleRow& row, size_t t) { return std::exp(row.held[t] - row.old[t]); }

double row_mean_ratio(const OracleRow& row, const std::vector<double>& lp) {
  double sum = 0;
  for (size_t t = 0; t < row.size(); ++t) sum += lp[t] - row.old[t];
  return std::exp(sum / double(row.size()));
}

TokenLosses vanilla(const OracleBatch& batch, const OracleParams& p) {
  const Edges e(p);
  const double c = param(p, "clip_ratio_c", 3), delta = param(p, "delta", kInf);
  return each(batch, [&](const OracleRow& row, size_t t) {
    const double loss = ppo(ratio(row, t), row.adv[t], e.low, e.high, delta);
    return row.adv[t] < 0 && c != 0 ? std::min(loss, -c * row.adv[t]) : loss;
  });
}

TokenLosses gspo(const OracleBatch& batch, const OracleParams& p) {  // the derivative of s
  const Edges e(p);
  return each(batch, [&](const OracleRow& row, size_t t) {
    return ppo(row_mean_ratio(row, row.lp), row.adv[t], e.low, e.high, param(p, "delta", kInf));
  });
}
TokenLosses gspo_token(const OracleBatch& batch, const OracleParams& p) {
  const Edges e(p);
  return each(batch, [&](const OracleRow& row, size_t t) {
    const double s = row_mean_ratio(row, row.held) * std::exp(row.lp[t] - row.held[t]);
    return ppo(s, row.adv[t], e.low, e.high, param(p, "delta", kInf));
  });
}

TokenLosses sapo(const OracleBatch& batch, const OracleParams& p) {
  return each(batch, [&](const OracleRow& row, size_t t) {
    const double tau = row.adv[t] > 0 ? param(p, "tau_pos", 1) : param(p, "tau_neg", 1.05);
    return -row.adv[t] * 4 / tau / (1 + std::exp(-tau * (ratio(row, t) - 1)));
  });
}

TokenLosses cispo(const OracleBatch& batch, const OracleParams& p) {
  const Edges e(p);
  const double cap = param(p, "cap", -1);
  return each(batch, [&](const OracleRow& row, size_t t) {
    const double r = held_ratio(row, t);
    return -(cap < 0 ? std::clamp(r, e.low, e.high) : std::min(r, cap)) * row.adv[t] * row.lp[t];
  });
}

// The same with the ratio of the row.
TokenLosses sapo_sequence(const OracleBatch& batch, const OracleParams& p) {
  return each(batch, [&](const OracleRow& row, size_t t) {
    const double tau = row.adv[t] > 0 ? param(p, "tau_pos", 1) : param(p, "tau_neg", 1.05);
    return -row.adv[t] * 4 / tau / (1 + std::exp(-tau * (row_mean_ratio(row, row.lp) - 1)));
  });
}
TokenLosses cispo_sequence(const OracleBatch& batch, const OracleParams& p) {
  const Edges e(p);
  const double cap = param(p, "cap", -1);
  return each(batch, [&](const OracleRow& row, size_t t) {
    const double s = row_mean_ratio(row, row.held);
    return -(cap < 0 ? std::clamp(s, e.low, e.high) : std::min(s, cap)) * row.adv[t] * row.lp[t];
  });
}

// The paper's form: the n-th root of a product of clipped ratios, to the sign of the advantage.
TokenLosses geo_mean(const OracleBatch& batch, const OracleParams& p) {
  const double low = std::exp(-param(p, "clip_ratio_low", param(p, "clip_ratio", 0.2)));
  const double high = std::exp(param(p, "clip_ratio_high", param(p, "clip_ratio", 0.2)));
  TokenLosses out;
  for (const OracleRow& row : batch) {
    double product = 1, weights = 1;
    const double n = double(row.size());
    for (size_t t = 0; t < row.size(); ++t) {
      const double r = ratio(row, t), clipped = std::clamp(r, low, high);
      product *= row.adv[t] > 0 ? std::min(r, clipped) : row.adv[t] < 0 ? std::max(r, clipped) : 1.0;
      weights *= row.rollout_weight[t];
    }
    const double loss = -mean(row.adv) * std::pow(product, 1 / n) * std::pow(weights, 1 / n);
    out.emplace_back(row.size(), loss);
  }
  return out;
}

TokenLosses policy_gradient(const OracleBatch& batch, const OracleParams&) {
  return each(batch, [](const OracleRow& row, size_t t) { return -row.adv[t] * row.lp[t]; });
}

// Places of the update's tokens in falling order of key(row, t).
template <class F>
std::vector<std::pair<size_t, size_t>> ranked(const OracleBatch& batch, const F& key) {
  std::vector<std::pair<double, std::pair<size_t, size_t>>> all;
  for (size_t i = 0; i < batch.size(); ++i) {
    for (size_t t = 0; t < batch[i].size(); ++t) all.push_back({-key(batch[i], t), {i, t}});
  }
  std::sort(all.begin(), all.end());
  std::vector<std::pair<size_t, size_t>> places;
  for (const auto& entry : all) places.push_back(entry.second);
  return places;
}

TokenLosses kl_cov(const OracleBatch& batch, const OracleParams& p) {
  std::vector<double> adv, logp;
  for (const OracleRow& row : batch) {
    adv.insert(adv.end(), row.adv.begin(), row.adv.end());
    logp.insert(logp.end(), row.held.begin(), row.held.end());
  }
  const auto places = ranked(
      batch, [&](const OracleRow& row, size_t t) { return (row.adv[t] - mean(adv)) * (row.held[t] - mean(logp)); });
  TokenLosses out = each(batch, [](const OracleRow& row, size_t t) { return -row.adv[t] * ratio(row, t); });
  const auto count = std::max<size_t>(1, size_t(double(places.size()) * param(p, "kl_cov_ratio", 2e-4)));
  for (size_t k = 0; k < count; ++k) {
    const auto [i, t] = places[k];
    out[i][t] += param(p, "ppo_kl_coef", 0.1) * std::abs(batch[i].lp[t] - batch[i].old[t]);
  }
  return out;
}

TokenLosses dppo(const OracleBatch& batch, const OracleParams& p, bool total_variation) {
  const double low = param(p, "clip_ratio_low", param(p, "clip_ratio", 0.2));
  const double high = param(p, "clip_ratio_high", param(p, "clip_ratio", 0.2));
  return each(batch, [&](const OracleRow& row, size_t t) {
    const double now = std::exp(row.held[t]), before = std::exp(row.old[t]);
    // For the distributions (p, 1 - p): half the absolute differences, or the relative entropy.
    const double divergence = total_variation ? 0.5 * (std::abs(now - before) + std::abs((1 - now) - (1 - before)))
                                              : before * std::log(before / now) +
                                                    (1 - before) * std::log((1 - before + 1e-8) / (1 - now + 1e-8));
    const bool ahead = row.adv[t] > 0 ? now > before : now < before;
    if (ahead && divergence > (row.adv[t] > 0 ? high : low)) return 0.0;
    return -std::min(held_ratio(row, t), param(p, "clip_ratio_c", 3)) * row.adv[t] * row.lp[t];
  });
}

TokenLosses dro(const OracleBatch& batch, const OracleParams& p) {
  return each(batch, [&](const OracleRow& row, size_t t) {
    const double d = row.lp[t] - row.old[t];
    return -row.adv[t] * row.lp[t] + param(p, "dro_beta", 0) / 2 * d * d;
  });
}

TokenLosses vespo(const OracleBatch& batch, const OracleParams& p) {
  TokenLosses out;
  for (const OracleRow& row : batch) {
    double w = 1;
    for (size_t t = 0; t < row.size(); ++t) w *= held_ratio(row, t) * row.rollout_weight[t];
    out.emplace_back();
    for (size_t t = 0; t < row.size(); ++t) {
      const bool good = row.adv[t] >= 0;
      const double k = good ? param(p, "vespo_k_pos", 2) : param(p, "vespo_k_neg", 3);
      const double lambda = good ? param(p, "vespo_lambda_pos", 3) : param(p, "vespo_lambda_neg", 2);
      out.back().push_back(-std::exp(lambda) * std::pow(w, k) * std::exp(-lambda * w) * row.adv[t] * row.lp[t]);
    }
  }
  return out;
}

TokenLosses fipo(const OracleBatch& batch, const OracleParams& p) {
  const Edges e(p);
  const double delta = param(p, "delta", kInf), range = param(p, "fipo_clip_range", 0.2);
  const double low = param(p, "fipo_clip_high_only", 1) != 0 ? 1 : 1 - range;
  return each(batch, [&](const OracleRow& row, size_t t) {
    double future = 0;
    for (size_t k = t; k < row.size(); ++k) {
      if (held_ratio(row, k) > delta) continue;
      future += std::pow(2, -double(k - t) / param(p, "fipo_decay_rate", 32)) * (row.held[k] - row.old[k]);
    }
    double w = std::clamp(std::exp(future), low, 1 + range);
    if (row.adv[t] < 0 && held_ratio(row, t) > param(p, "fipo_safety_threshold", 4)) w = std::clamp(w, 0.8, 1.0);
    return w * ppo(ratio(row, t), row.adv[t], e.low, e.high, delta);
  });
}

TokenLosses real(const OracleBatch& batch, const OracleParams& p) {
  const double tau = param(p, "real_tau", 0.5);
  std::map<int64_t, std::pair<double, double>> sums;  // by group: of negatives, of positives
  for (const OracleRow& row : batch) {
    if (row.size() == 0) continue;
    const double s = std::log(row_mean_ratio(row, row.lp));
    auto& [negative, positive] = sums[row.group];
    (mean(row.adv) > 0 ? positive : negative) += std::exp((mean(row.adv) > 0 ? -s : s) / tau);
  }
  return each(batch, [&](const OracleRow& row, size_t) {
    const auto& [negative, positive] = sums[row.group];
    return negative > 0 && positive > 0 ? std::log(1 + negative) + std::log(1 + positive) : 0.0;
  });
}

TokenLosses topr(const OracleBatch& batch, const OracleParams&) {
  return each(batch, [](const OracleRow& row, size_t t) {
    double product = 1;
    for (size_t k = 0; k < row.size(); ++k) product *= std::exp(row.held[k] - row.rollout[k]);
    return -(row.adv[t] >= 0 ? 1.0 : std::clamp(product, 0.0, 1.0)) * row.adv[t] * row.lp[t];
  });
}

TokenLosses aipo(const OracleBatch& batch, const OracleParams& p) {
  return each(batch, [&](const OracleRow& row, size_t t) {
    return -std::min(std::exp(row.held[t] - row.rollout[t]), param(p, "rho", 2)) * row.adv[t] * row.lp[t];
  });
}

// As the paper's algorithm goes: take the largest away until the mean is small enough.
TokenLosses m2po(const OracleBatch& batch, const OracleParams& p) {
  const auto square = [](const OracleRow& row, size_t t) { return std::pow(row.held[t] - row.old[t], 2); };
  const bool clippable_only = param(p, "m2_clippable_only", 0) != 0;
  auto places = ranked(batch, square);
  std::erase_if(places, [&](const auto& place) {
    const OracleRow& row = batch[place.first];
    return clippable_only && row.adv[place.second] * (row.held[place.second] - row.old[place.second]) <= 0;
  });
  size_t removed = 0;
  const auto moment = [&] {
    double sum = 0;
    for (size_t k = removed; k < places.size(); ++k) sum += square(batch[places[k].first], places[k].second);
    return sum / double(places.size() - removed);
  };
  const size_t stay = clippable_only ? 0 : 1;
  while (removed + stay < places.size() && moment() >= param(p, "m2_threshold", 0.04)) ++removed;
  const double clip = param(p, "ppo_clip", kInf);
  TokenLosses out =
      each(batch, [&](const OracleRow& row, size_t t) { return ppo(ratio(row, t), row.adv[t], 1 - clip, 1 + clip); });
  for (size_t k = 0; k < removed; ++k) out[places[k].first][places[k].second] = 0;
  return out;
}

TokenLosses decoupled(const OracleBatch& batch, const OracleParams& p) {
  const Edges e(p);
  return each(batch, [&](const OracleRow& row, size_t t) {
    const double behaviour = std::exp(row.old[t] - row.rollout[t]);
    if (behaviour > param(p, "behav_imp_weight_cap", kInf)) return 0.0;
    return behaviour * ppo(ratio(row, t), row.adv[t], e.low, e.high);
  });
}

}  // namespace

const std::map<std::string, Oracle>& policy_loss_oracles() {
  using std::placeholders::_1;
  using std::placeholders::_2;
  static const std::map<std::string, Oracle> oracles = {{"vanilla", vanilla},
                                                        {"gspo", gspo},
                                                        {"gspo_token", gspo_token},
                                                        {"luspo", gspo},
                                                        {"sapo", sapo},
                                                        {"cispo", cispo},
                                                        {"cispo_sequence", cispo_sequence},
                                                        {"sapo_sequence", sapo_sequence},
                                                        {"geo_mean", geo_mean},
                                                        {"gpg", policy_gradient},
                                                        {"reinforce", policy_gradient},
                                                        {"kl_cov", kl_cov},
                                                        {"dro", dro},
                                                        {"dppo_tv", std::bind(dppo, _1, _2, true)},
                                                        {"vespo", vespo},
                                                        {"fipo", fipo},
                                                        {"dppo_kl", std::bind(dppo, _1, _2, false)},
                                                        {"real", real},
                                                        {"topr", topr},
                                                        {"aipo", aipo},
                                                        {"m2po", m2po},
                                                        {"decoupled", decoupled}};
  return oracles;
}

TokenLosses oracle_gradient(const Oracle& oracle, const OracleBatch& batch, const OracleParams& params) {
  constexpr double kStep = 1e-6;
  const auto total = [&](const OracleBatch& at) {
    const TokenLosses losses = oracle(at, params);
    double sum = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      for (size_t t = 0; t < at[i].size(); ++t) sum += at[i].weight[t] * losses[i][t];
    }
    return sum;
  };
  TokenLosses gradient;
  OracleBatch moved = batch;
  for (size_t i = 0; i < batch.size(); ++i) {
    gradient.emplace_back();
    for (size_t t = 0; t < batch[i].size(); ++t) {
      moved[i].lp[t] = batch[i].lp[t] + kStep;
      const double above = total(moved);
      moved[i].lp[t] = batch[i].lp[t] - kStep;
      const double below = total(moved);
      moved[i].lp[t] = batch[i].lp[t];
      gradient.back().push_back((above - below) / (2 * kStep));
    }
  }
  return gradient;
}

}  // namespace mortise::test
