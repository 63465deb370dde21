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

// One step's rows. Spans are valid until compute returns. An input that was not asked for gives empty spans.
class AdvantageBatch {
 public:
  AdvantageBatch(const mortise_advantage_estimator_in* in, mortise_advantage_estimator_out* out) : in_(in), out_(out) {}

  std::int64_t num_rows() const { return in_->layout->num_rows; }
  std::int64_t step() const { return in_->step; }
  std::int64_t group_index(std::int64_t row) const { return in_->layout->group_index[row]; }
  std::int64_t row_id(std::int64_t row) const { return in_->layout->row_id[row]; }
  // False where no reward function applied.
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
  Span<float> advantages(std::int64_t row) { return tokens<float>(out_->advantages, row); }
  Span<float> returns(std::int64_t row) { return tokens<float>(out_->returns, row); }

  // Sum of the row's token rewards; a reward counts wherever it stands, also on a masked token.
  double outcome(std::int64_t row) const {
    double total = 0;
    for (const float r : token_rewards(row)) total += double(r);
    return total;
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
  std::int64_t num_rows;  // of the group, those without a reward included
};

// advantage of a row = f(outcome rewards of its group), the same for all its unmasked tokens; returns are the same.
// A row without a reward (not valid, or NaN) is left out of its group and has advantage 0.
class OutcomeEstimator : public AdvantageEstimator {
 public:
  // Fills advantages[i] for rewards[i]. Called once per group that has a reward, in the order of first appearance.
  virtual void group(const Group& group, Span<double> advantages) const = 0;

  void compute(AdvantageBatch& batch, Call) override {
    for (const std::vector<std::int64_t>& rows : groups_of(batch)) {
      std::vector<double> rewards, advantages;
      std::vector<std::int64_t> scored;
      for (const std::int64_t row : rows) {
        const double reward = batch.valid(row) ? batch.outcome(row) : std::numeric_limits<double>::quiet_NaN();
        if (std::isnan(reward)) continue;
        rewards.push_back(reward);
        scored.push_back(row);
      }
      if (scored.empty()) continue;
      advantages.assign(scored.size(), 0.0);
      group(Group{{rewards.data(), std::int64_t(rewards.size())}, std::int64_t(rows.size())}, advantages);
      for (std::size_t i = 0; i < scored.size(); ++i) broadcast(batch, scored[i], advantages[i]);
    }
  }

 private:
  static std::vector<std::vector<std::int64_t>> groups_of(const AdvantageBatch& batch) {
    std::vector<std::vector<std::int64_t>> groups;
    std::unordered_map<std::int64_t, std::size_t> place;
    for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
      const auto [it, added] = place.emplace(batch.group_index(row), groups.size());
      if (added) groups.emplace_back();
      groups[it->second].push_back(row);
    }
    return groups;
  }

  static void broadcast(AdvantageBatch& batch, std::int64_t row, double advantage) {
    const auto mask = batch.mask(row);
    const auto advantages = batch.advantages(row), returns = batch.returns(row);
    for (std::int64_t t = 0; t < mask.size(); ++t) {
      const float value = mask[t] != 0 ? float(advantage) : 0.0F;
      advantages[t] = value;
      if (!returns.empty()) returns[t] = value;
    }
  }
};

namespace detail {

template <class T>
struct AdvantageEstimatorPlugin {
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
