// Advantage cases: groups without a difference, groups of one, rows without a reward.
#include <fmt/core.h>

#include <cmath>

#include "conformance/token_batch.h"
#include "foundation/base/text.h"

namespace mortise::check {
namespace {

// An outcome of `value(row)` for every row, and nothing else.
void set_rewards(TokenBatch& batch, float (*value)(size_t row)) {
  auto& rewards = batch.column<column::TokenLevelRewards>();
  for (size_t row = 0; row + 1 < batch.row_offsets.size(); ++row) {
    const float outcome = value(row);
    for (auto t = static_cast<size_t>(batch.row_offsets[row]); t < static_cast<size_t>(batch.row_offsets[row + 1]);
         ++t) {
      if (rewards[t] != 0.0F) rewards[t] = outcome;
    }
    batch.rows["reward_0"][row] = outcome;
    batch.rows["reward_1"][row] = 0;
  }
}

Result<> equal_rewards(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  for (const uint64_t seed : {1U, 2U}) {
    TokenBatch batch = usual_batch(seed);
    set_rewards(
        batch, seed == 1 ? [](size_t) { return 1.0F; } : [](size_t) { return 0.1F; });
    const TokenResult result = TRY(tokens_ok(instance, batch));
    TRY(demand_finite(subject, batch, result, "where all rewards of a group are equal"));
    for (size_t t = 0; t < batch.mask.size(); ++t) {
      if (batch.mask[t] != 0 && std::abs(result.out[0][t]) > 100.0F)
        return broken(fmt::format("equal rewards give the advantage {} at {}: rounding divided by a deviation of 0",
                                  format_f64(result.out[0][t]), place_of(batch, t)));
    }
  }
  return {};
}

Result<> single_row_groups(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  constexpr int64_t kLengths[] = {9, 4, 13, 6};
  const TokenBatch batch = make_batch(kLengths, 1, 1, true);
  const TokenResult result = TRY(tokens_ok(instance, batch));
  return demand_finite(subject, batch, result, "where a group has one row");
}

Result<> invalid_rows(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  TokenBatch batch = usual_batch();
  batch.row_valid[1] = batch.row_valid[6] = 0;
  const auto with = [&](float reward) {
    TokenBatch out = batch;
    for (const size_t row : {size_t{1}, size_t{6}}) {
      for (auto t = static_cast<size_t>(out.row_offsets[row]); t < static_cast<size_t>(out.row_offsets[row + 1]); ++t) {
        float& given = out.column<column::TokenLevelRewards>()[t];
        if (given != 0.0F) given = reward;
      }
    }
    return out;
  };
  const TokenBatch small = with(0.5F), large = with(1000.0F);
  TokenResult a = TRY(tokens_ok(instance, small)), b = TRY(tokens_ok(instance, large));
  TokenBatch others = batch;
  for (const size_t row : {size_t{1}, size_t{6}}) {
    for (auto t = static_cast<size_t>(batch.row_offsets[row]); t < static_cast<size_t>(batch.row_offsets[row + 1]); ++t)
      others.mask[t] = 0;
  }
  return compare(instance, others, a, b, kTolerance, "with another number in rows that have no reward");
}

constexpr Case kAdvantageCases[] = {
    {"advantage.equal_rewards", "R40", kAdvantage, "equal rewards in a group give finite and small advantages",
     equal_rewards},
    {"advantage.single_row_groups", "R34", kAdvantage, "groups of one row give finite advantages", single_row_groups},
    {"advantage.invalid_rows", "R23", kAdvantage, "rows without a reward do not change the others", invalid_rows},
};

}  // namespace

std::span<const Case> advantage_cases() { return kAdvantageCases; }

}  // namespace mortise::check
