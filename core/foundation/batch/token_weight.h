// Token weights: the loss aggregation of verl, TRL and ms-swift as one weight per token.
//
// The aggregated loss of an update is sum_t weight_t * loss_t over all its tokens on all ranks. The weights depend only
// on counts of the whole update, so loss and gradient are the same for every micro-batch size, accumulation, packing
// and rank count. L = token loss, n_i = unmasked tokens of row i, N = sum n_i, R = rows that count, P = prompts that
// count, n_p = unmasked tokens of prompt p:
//     token-mean               sum L / N
//     token-sum                sum L
//     seq-mean-token-mean      (1/R) sum_i (1/n_i) sum L
//     seq-mean-token-sum       (1/R) sum_i sum L
//     seq-mean-token-sum-norm  the same divided by loss_scale_factor; without 1/R if loss_scale_by_rows is false
//     prompt-mean              (1/P) sum_p (1/n_p) sum L                                   (ScaleRL, 2510.13786)
// Rows and prompts without an unmasked token count only with loss_agg_rows = all. Masked tokens weigh 0.
// Shapes: N tokens, B rows. Cost: one pass. Threading: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "foundation/base/result.h"

namespace mortise {

enum class LossAggMode {
  kTokenMean,
  kTokenSum,
  kSeqMeanTokenMean,
  kSeqMeanTokenSum,
  kSeqMeanTokenSumNorm,
  kPromptMean,
};
constexpr auto choice_names(LossAggMode) {
  return std::array<std::string_view, 6>{
      "token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "prompt-mean"};
}
enum class LossAggRows { kNonempty, kAll };
constexpr auto choice_names(LossAggRows) { return std::array<std::string_view, 2>{"nonempty", "all"}; }

[[nodiscard]] Result<LossAggMode> parse_loss_agg_mode(std::string_view name);
[[nodiscard]] std::string_view loss_agg_mode_name(LossAggMode mode);
[[nodiscard]] std::span<const std::string_view> loss_agg_mode_names();
[[nodiscard]] Result<LossAggRows> parse_loss_agg_rows(std::string_view name);  // "nonempty", "all"

struct TokenWeightOptions {
  LossAggMode mode = LossAggMode::kTokenMean;
  LossAggRows rows = LossAggRows::kNonempty;
  double loss_scale_factor = 0;    // > 0 for seq-mean-token-sum-norm; the caller puts the default in
  bool loss_scale_by_rows = true;  // seq-mean-token-sum-norm: also divide by R
};

// Counts of a whole update. Ranks and micro-batches add up theirs before any weight is made.
struct UpdateCounts {
  int64_t num_tokens = 0;                   // unmasked
  int64_t num_rows = 0;                     // all
  int64_t num_nonempty_rows = 0;            // with an unmasked token
  std::map<int64_t, int64_t> group_tokens;  // unmasked tokens by group_index; groups without one are in with 0

  void add(const UpdateCounts& other);
};

// row_offsets [B+1], mask [N], group_index [B] (empty: every row is its own prompt, numbered by its place).
[[nodiscard]] UpdateCounts count_update(std::span<const int64_t> row_offsets, std::span<const uint8_t> mask,
                                        std::span<const int64_t> group_index);

// Weight of every token of these rows. `counts` is the whole update's. weight [N] is written whole.
Result<void> token_weights(const TokenWeightOptions& options, const UpdateCounts& counts,
                           std::span<const int64_t> row_offsets, std::span<const uint8_t> mask,
                           std::span<const int64_t> group_index, std::span<float> weight);

}  // namespace mortise
