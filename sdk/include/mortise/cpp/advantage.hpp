/* AdvantageEstimator: advantages and returns of a whole step; OutcomeEstimator: the common case of one number per
 * completion, compared inside its group.
 *
 *     struct Grpo : mortise::OutcomeEstimator {
 *       void group(const mortise::Group& g, mortise::Span<double> advantages) const override { ... }
 *     };
 *     MORTISE_PACK(MORTISE_ADVANTAGE_ESTIMATOR("grpo", Grpo))
 *
 * Everything is summed in double and in the order of the rows, so that equal rewards of a group give exactly 0.
 * Cost: linear in tokens. Called by one thread. [compute]
 */
#ifndef MORTISE_CPP_ADVANTAGE_HPP_
#define MORTISE_CPP_ADVANTAGE_HPP_

#include <unordered_map>
#include <vector>

#include "plugin.hpp"

namespace mortise {

// The rows of one prompt that have a reward, in the order of the batch.
struct ScoredGroup {
  std::vector<std::int64_t> rows;
  std::vector<double> rewards;  // outcome of each
  std::int64_t num_rows = 0;    // rows of the prompt, with those without a reward
};

// The rows of one step. Spans are valid until compute returns. An input that was not requested gives empty spans.
class AdvantageBatch {
 public:
  AdvantageBatch(const mortise_advantage_estimator_in* in, mortise_advantage_estimator_out* out) : in_(in), out_(out) {}

  std::int64_t num_rows() const { return in_->layout->num_rows; }
  std::int64_t num_tokens() const { return in_->layout->num_tokens; }
  // Index of the row's first token among all tokens.
  std::int64_t row_begin(std::int64_t row) const { return in_->layout->row_offsets[row]; }
  std::int64_t step() const { return in_->step; }
  std::int64_t group_index(std::int64_t row) const { return in_->layout->group_index[row]; }
  std::int64_t row_id(std::int64_t row) const { return in_->layout->row_id[row]; }
  // False if no reward function applied.
  bool valid(std::int64_t row) const {
    const auto* valid = static_cast<const std::uint8_t*>(mortise_tensor_data(in_->row_valid));
    return valid == nullptr || valid[row] != 0;
  }
  Span<const std::uint8_t> mask(std::int64_t row) const { return tokens<const std::uint8_t>(in_->response_mask, row); }
  Span<const float> token_rewards(std::int64_t row) const { return tokens<const float>(in_->token_level_rewards, row); }
  Span<const float> values(std::int64_t row) const { return tokens<const float>(in_->values, row); }
  Span<const float> old_log_prob(std::int64_t row) const { return tokens<const float>(in_->old_log_prob, row); }
  Span<const float> sum_pi_squared(std::int64_t row) const { return tokens<const float>(in_->sum_pi_squared, row); }
  Span<const float> rollout_is_weights(std::int64_t row) const {
    return tokens<const float>(in_->rollout_is_weights, row);
  }
  // Number of reward functions; 0 if the host gives only outcomes.
  std::int64_t num_functions() const { return in_->rewards == nullptr ? 0 : in_->rewards->shape[1]; }
  // The value of function k for the row; NaN if it does not apply.
  double reward(std::int64_t row, std::int64_t k) const {
    return double(static_cast<const float*>(mortise_tensor_data(in_->rewards))[row * num_functions() + k]);
  }
  double reward_weight(std::int64_t k) const {
    const auto* weights = static_cast<const float*>(mortise_tensor_data(in_->reward_weights));
    return weights == nullptr ? 1.0 : double(weights[k]);
  }
  // Reward of the greedy completion of the row's prompt. Only if requires_inputs names "reward_baselines".
  double reward_baseline(std::int64_t row) const {
    return double(static_cast<const float*>(mortise_tensor_data(in_->reward_baselines))[row]);
  }
  Span<float> advantages(std::int64_t row) { return tokens<float>(out_->advantages, row); }
  Span<float> returns(std::int64_t row) { return tokens<float>(out_->returns, row); }

  // Sum of the row's token rewards. A reward counts at every token, also at a masked one.
  double outcome(std::int64_t row) const {
    double total = 0;
    for (const float r : token_rewards(row)) total += double(r);
    return total;
  }

  // The outcome, or NaN if the row has no reward (not valid, or NaN). Such a row has no influence, and its advantages
  // stay 0.
  double score(std::int64_t row) const { return valid(row) ? outcome(row) : std::numeric_limits<double>::quiet_NaN(); }
  bool has_score(std::int64_t row) const { return !std::isnan(score(row)); }

  // The prompts that have a row with a reward, in the order of first appearance.
  std::vector<ScoredGroup> groups() const {
    std::vector<ScoredGroup> all, scored;
    std::unordered_map<std::int64_t, std::size_t> place;
    for (std::int64_t row = 0; row < num_rows(); ++row) {
      const auto [it, added] = place.emplace(group_index(row), all.size());
      if (added) all.emplace_back();
      ScoredGroup& group = all[it->second];
      ++group.num_rows;
      const double reward = score(row);
      if (std::isnan(reward)) continue;
      group.rows.push_back(row);
      group.rewards.push_back(reward);
    }
    for (ScoredGroup& group : all) {
      if (!group.rows.empty()) scored.push_back(std::move(group));
    }
    return scored;
  }

  // Sets one advantage, and the same return, for all unmasked tokens of the row. Masked tokens get 0.
  void broadcast(std::int64_t row, double advantage) {
    const auto kept = mask(row);
    const auto to_advantages = advantages(row), to_returns = returns(row);
    for (std::int64_t t = 0; t < kept.size(); ++t) {
      const float value = kept[t] != 0 ? float(advantage) : 0.0F;
      to_advantages[t] = value;
      if (!to_returns.empty()) to_returns[t] = value;
    }
  }

  const mortise_advantage_estimator_in* raw() const { return in_; }

 private:
  template <class T>
  Span<T> tokens(const mortise_tensor* t, std::int64_t row) const {
    auto* data = static_cast<T*>(mortise_tensor_data(t));
    if (data == nullptr) return {};
    const std::int64_t begin = in_->layout->row_offsets[row];
    return {data + begin, in_->layout->row_offsets[row + 1] - begin};
  }

  const mortise_advantage_estimator_in* in_;
  mortise_advantage_estimator_out* out_;
};

class AdvantageEstimator : public Plugin {
 public:
  virtual void compute(AdvantageBatch& batch, Call call) = 0;
};

// The rows of one prompt that have a reward.
struct Group {
  Span<const double> rewards;
  std::int64_t num_rows;  // rows of the group, with those without a reward
};

// The advantage of a row is a function of its group's outcome rewards, the same for all its unmasked tokens. Returns
// are equal to advantages. A row without a reward (not valid, or NaN) does not count in its group and has advantage 0.
class OutcomeEstimator : public AdvantageEstimator {
 public:
  static constexpr std::uint32_t flags = MORTISE_FLAG_COMPARES_GROUP;  // 0 in one that looks at each row alone

  // Fills advantages[i] for rewards[i]. Called once per group that has a reward, in the order of first appearance.
  virtual void group(const Group& group, Span<double> advantages) const = 0;

  void compute(AdvantageBatch& batch, Call) override {
    std::vector<double> advantages;
    for (ScoredGroup& scored : batch.groups()) {
      advantages.assign(scored.rows.size(), 0.0);
      group(Group{{scored.rewards.data(), std::int64_t(scored.rewards.size())}, scored.num_rows}, advantages);
      for (std::size_t i = 0; i < scored.rows.size(); ++i) batch.broadcast(scored.rows[i], advantages[i]);
    }
  }
};

namespace detail {

template <class T>
struct AdvantageEstimatorPlugin {
  static_assert(std::is_base_of_v<AdvantageEstimator, T>,
                "MORTISE_ADVANTAGE_ESTIMATOR takes a class that derives from mortise::AdvantageEstimator, or from "
                "mortise::OutcomeEstimator");
  static std::int32_t compute(void* self, mortise_call* raw, const mortise_advantage_estimator_in* in,
                              mortise_advantage_estimator_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) {
      AdvantageBatch batch(in, out);
      plugin.compute(batch, call);
    });
  }
  static constexpr mortise_advantage_estimator_vtable vtable = {
      sizeof(mortise_advantage_estimator_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
  static mortise_descriptor describe(const char* name) {
    return detail::describe<T>(MORTISE_KIND_ADVANTAGE_ESTIMATOR, name, MORTISE_COUPLING_UPDATE, &vtable);
  }
};

}  // namespace detail
}  // namespace mortise

#define MORTISE_ADVANTAGE_ESTIMATOR(name, ...) MORTISE_PLUGIN(name, AdvantageEstimatorPlugin<__VA_ARGS__>)

#endif  // MORTISE_CPP_ADVANTAGE_HPP_
