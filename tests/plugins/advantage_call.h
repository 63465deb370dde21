// One call of an advantage estimator on plain vectors, and random batches for it.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "loss_call.h"

namespace mortise::test {

using Estimator = Instance<mortise_advantage_estimator_vtable>;
using Params = std::map<std::string, std::string>;

inline const mortise_descriptor* estimator(const std::string& name) {
  return find_plugin(load_pack(pack_path("advantage_estimator")), MORTISE_KIND_ADVANTAGE_ESTIMATOR, name);
}

// N tokens of B rows, K reward functions. Empty optional vectors are not given.
struct AdvantageCase {
  std::vector<int64_t> row_offsets{0}, group_index;
  std::vector<float> rewards;                                           // [N]
  std::vector<uint8_t> mask;                                            // [N]
  std::vector<uint8_t> valid;                                           // [B]
  std::vector<float> columns, weights;                                  // [B,K], [K]
  std::vector<float> values, old_log_prob, sum_pi_squared, is_weights;  // [N]
  std::vector<float> baselines;                                         // [B]
  int64_t step = 1;

  size_t num_rows() const { return group_index.size(); }
  size_t begin(size_t row) const { return size_t(row_offsets[row]); }
  size_t end(size_t row) const { return size_t(row_offsets[row + 1]); }
};

struct AdvantageResult {
  std::vector<float> advantages, returns;
};

inline AdvantageResult compute(Estimator& plugin, const AdvantageCase& b) {
  const auto rows = int64_t(b.num_rows());
  std::vector<int64_t> id(b.num_rows());
  std::iota(id.begin(), id.end(), 0);
  const mortise_layout layout{sizeof layout,       0, rows, b.row_offsets.back(), b.row_offsets.data(), id.data(),
                              b.group_index.data()};
  const FlatTensor<float> rewards(b.rewards), values(b.values), old(b.old_log_prob), squares(b.sum_pi_squared),
      importance(b.is_weights), baselines(b.baselines), weights(b.weights),
      columns(b.columns, {rows, rows == 0 ? 0 : int64_t(b.columns.size()) / rows});
  const FlatTensor<uint8_t> mask(b.mask), valid(b.valid);
  FlatTensor<float> advantages(std::vector<float>(b.mask.size())), returns(std::vector<float>(b.mask.size()));
  const auto given = [](const auto& values_, const auto& tensor) { return values_.empty() ? nullptr : tensor.view(); };
  mortise_advantage_estimator_in in{};
  in.struct_size = sizeof in;
  in.layout = &layout;
  in.token_level_rewards = rewards.view();
  in.response_mask = mask.view();
  in.rewards = given(b.columns, columns);
  in.reward_weights = given(b.weights, weights);
  in.row_valid = given(b.valid, valid);
  in.values = given(b.values, values);
  in.reward_baselines = given(b.baselines, baselines);
  in.old_log_prob = given(b.old_log_prob, old);
  in.sum_pi_squared = given(b.sum_pi_squared, squares);
  in.rollout_is_weights = given(b.is_weights, importance);
  in.step = b.step;
  mortise_advantage_estimator_out out{};
  out.struct_size = sizeof out;
  out.advantages = advantages.view();
  out.returns = returns.view();
  plugin.call.metrics.clear();
  if (plugin.vtable->compute(plugin.self, &plugin.call, &in, &out) != 0) throw std::runtime_error(plugin.call.error);
  return {advantages.values(), returns.values()};
}

inline AdvantageResult compute(const std::string& name, const Params& params, const AdvantageCase& b) {
  Estimator plugin(estimator(name), params);
  if (plugin.status != 0) throw std::runtime_error(plugin.call.error);
  return compute(plugin, b);
}

// One token a row: the advantages are those of the rows.
inline AdvantageCase outcome_case(const std::vector<float>& rewards, std::vector<int64_t> groups = {},
                                  std::vector<uint8_t> valid = {}) {
  AdvantageCase b;
  b.group_index = groups.empty() ? std::vector<int64_t>(rewards.size(), 7) : std::move(groups);
  b.rewards = rewards;
  b.mask.assign(rewards.size(), 1);
  b.valid = std::move(valid);
  for (size_t i = 1; i <= rewards.size(); ++i) b.row_offsets.push_back(int64_t(i));
  return b;
}

inline std::vector<float> outcomes(const std::string& name, const Params& params, const std::vector<float>& rewards,
                                   std::vector<int64_t> groups = {}, std::vector<uint8_t> valid = {}) {
  AdvantageCase b = outcome_case(rewards, std::move(groups), std::move(valid));
  b.values.assign(rewards.size(), 0);
  b.baselines.assign(rewards.size(), 0);
  b.old_log_prob.assign(rewards.size(), -1);
  b.sum_pi_squared.assign(rewards.size(), 0.5F);
  return compute(name, params, b).advantages;
}

struct RandomShape {
  size_t num_groups = 5, group_size = 4, max_length = 12;
  bool holes = true;    // some masked tokens inside the rows
  bool binary = false;  // rewards 0 and 1, else any in [0, 1]
};

// All inputs given; the outcome at the row's last unmasked token; groups interleaved; a group of one at the end.
inline AdvantageCase random_case(uint32_t seed, const RandomShape& shape = {}) {
  std::mt19937 engine(seed);
  const auto uniform = [&](double low, double high) {
    return float(std::uniform_real_distribution<double>(low, high)(engine));
  };
  AdvantageCase b;
  for (size_t i = 0; i < shape.num_groups * shape.group_size; ++i)
    b.group_index.push_back(int64_t(i % shape.num_groups));
  std::shuffle(b.group_index.begin(), b.group_index.end(), engine);
  b.group_index.push_back(10000);
  for (size_t row = 0; row < b.group_index.size(); ++row) {
    const size_t length = 2 + size_t(engine()) % (shape.max_length - 1);
    const float outcome = shape.binary ? float(engine() % 2) : uniform(0, 1);
    for (size_t t = 0; t < length; ++t) {
      const bool last = t + 1 == length;
      b.mask.push_back(uint8_t(shape.holes && !last && engine() % 4 == 0 ? 0 : 1));
      b.rewards.push_back(last ? outcome : 0);
      b.values.push_back(uniform(-1, 1));
      b.old_log_prob.push_back(uniform(-3, -0.1));
      b.sum_pi_squared.push_back(uniform(0.1, 0.9));
      b.is_weights.push_back(uniform(0.5, 1.5));
    }
    b.row_offsets.push_back(int64_t(b.mask.size()));
    b.columns.push_back(outcome);
    b.columns.push_back(uniform(0, 1));
    b.baselines.push_back(uniform(0, 1));
  }
  b.weights = {1.0F, 0.5F};
  return b;
}

// Advantages of the unmasked tokens, row after row.
inline std::vector<double> kept(const AdvantageCase& b, const std::vector<float>& values) {
  std::vector<double> out;
  for (size_t t = 0; t < values.size(); ++t) {
    if (b.mask[t] != 0) out.push_back(double(values[t]));
  }
  return out;
}

}  // namespace mortise::test
