// Which columns of a step (foundation/batch/columns.h) plugins see: the fields of the C structs. fill_columns.h fills
// them.
//
// A new column that plugins are to see is a field at the end of the C struct and a line here. Thread rule: constants.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "foundation/batch/columns.h"
#include "mortise/kinds/advantage_estimator.h"
#include "mortise/kinds/kl_estimator.h"
#include "mortise/kinds/policy_loss.h"

namespace mortise {

template <class C, class In>
struct InputField {
  using Shown = C;
  const mortise_tensor* In::*field;
  bool is_optional;
};
template <class C, class In>
constexpr InputField<C, In> always(const mortise_tensor* In::*field) {
  return {field, false};
}
// Null if the run does not have the column, unless the plugin requires it: then the call is an error.
template <class C, class In>
constexpr InputField<C, In> if_there(const mortise_tensor* In::*field) {
  return {field, true};
}

// The fields of one kind's input struct.
template <class In>
struct InputFields;

template <>
struct InputFields<mortise_policy_loss_in> {
  using In = mortise_policy_loss_in;
  static constexpr auto kAll = std::tuple{
      always<column::LogProb>(&In::log_prob),
      always<column::OldLogProb>(&In::old_log_prob),
      always<column::Advantages>(&In::advantages),
      always<column::ResponseMask>(&In::response_mask),
      always<column::Weight>(&In::weight),
      if_there<column::RefLogProb>(&In::ref_log_prob),
      if_there<column::RolloutLogProb>(&In::rollout_log_prob),
      if_there<column::RolloutIsWeights>(&In::rollout_is_weights),
      if_there<column::Entropy>(&In::entropy),
  };
};

template <>
struct InputFields<mortise_kl_estimator_in> {
  using In = mortise_kl_estimator_in;
  static constexpr auto kAll = std::tuple{
      always<column::LogProb>(&In::log_prob),           always<column::RefLogProb>(&In::ref_log_prob),
      always<column::ResponseMask>(&In::response_mask), always<column::Weight>(&In::weight),
      if_there<column::OldLogProb>(&In::old_log_prob),
  };
};

template <>
struct InputFields<mortise_advantage_estimator_in> {
  using In = mortise_advantage_estimator_in;
  static constexpr auto kAll = std::tuple{
      always<column::TokenLevelRewards>(&In::token_level_rewards),
      always<column::ResponseMask>(&In::response_mask),
      if_there<column::RowValid>(&In::row_valid),
      if_there<column::Values>(&In::values),
      if_there<column::RewardBaselines>(&In::reward_baselines),
      if_there<column::OldLogProb>(&In::old_log_prob),
      if_there<column::SumPiSquared>(&In::sum_pi_squared),
      if_there<column::RolloutIsWeights>(&In::rollout_is_weights),
  };
};

// A column that a kind sees.
struct InputColumn {
  std::string_view name;
  Level level;
  bool is_mask;  // bytes; else floats
};

// All of them, in the order of InputFields.
template <class In>
consteval auto input_columns() {
  return std::apply(
      []<class... C>(const InputField<C, In>&...) {
        return std::array<InputColumn, sizeof...(C)>{
            InputColumn{C::name, C::level, std::is_same_v<typename C::Value, uint8_t>}...};
      },
      InputFields<In>::kAll);
}

// The names of the columns that a kind sees, and of `others`, what its struct has besides.
template <class In, class... Names>
consteval auto input_names(Names... others) {
  return std::apply(
      [&]<class... C>(const InputField<C, In>&...) {
        return std::array<std::string_view, sizeof...(C) + sizeof...(Names)>{C::name..., others...};
      },
      InputFields<In>::kAll);
}

}  // namespace mortise
