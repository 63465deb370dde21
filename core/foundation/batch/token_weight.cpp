// Counts the tokens, rows and prompts of an update, and computes the weights from the counts.
#include "foundation/batch/token_weight.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "foundation/base/choice.h"
#include "foundation/base/suggest.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr auto kModeNames = choice_names(LossAggMode{});

int64_t count_unmasked(std::span<const uint8_t> mask, int64_t first, int64_t last) {
  return std::count_if(mask.begin() + first, mask.begin() + last, [](uint8_t m) { return m != 0; });
}

int64_t group_of(std::span<const int64_t> group_index, size_t row) {
  return group_index.empty() ? static_cast<int64_t>(row) : group_index[row];
}

double reciprocal(double x) { return x > 0 ? 1.0 / x : 0.0; }

// Weight of the tokens of one row that has `row_tokens` of them, its prompt `group_tokens`.
double row_weight(const TokenWeightOptions& options, const UpdateCounts& counts, int64_t num_groups, int64_t row_tokens,
                  int64_t group_tokens) {
  const auto rows = static_cast<double>(options.rows == LossAggRows::kAll ? counts.num_rows : counts.num_nonempty_rows);
  switch (options.mode) {
    case LossAggMode::kTokenMean:
      return reciprocal(static_cast<double>(counts.num_tokens));
    case LossAggMode::kTokenSum:
      return 1.0;
    case LossAggMode::kSeqMeanTokenMean:
      return reciprocal(rows) * reciprocal(static_cast<double>(row_tokens));
    case LossAggMode::kSeqMeanTokenSum:
      return reciprocal(rows);
    case LossAggMode::kSeqMeanTokenSumNorm:
      return reciprocal(options.loss_scale_factor) * (options.loss_scale_by_rows ? reciprocal(rows) : 1.0);
    case LossAggMode::kPromptMean:
      return reciprocal(static_cast<double>(num_groups)) * reciprocal(static_cast<double>(group_tokens));
  }
  return 0.0;
}

Error bug(std::string what) {
  return {ErrorKind::kInternal, "token weights: " + std::move(what), "", "this is a bug of the engine"};
}

}  // namespace

Result<LossAggMode> parse_loss_agg_mode(std::string_view name) {
  if (const std::optional<LossAggMode> mode = parse_choice<LossAggMode>(name)) return *mode;
  const std::vector<std::string> names(kModeNames.begin(), kModeNames.end());
  return Error{ErrorKind::kConfig, "loss_agg_mode has no mode " + quote(name), "", suggest(name, names)};
}

std::string_view loss_agg_mode_name(LossAggMode mode) { return choice_name(mode); }

std::span<const std::string_view> loss_agg_mode_names() { return kModeNames; }

Result<LossAggRows> parse_loss_agg_rows(std::string_view name) {
  if (const std::optional<LossAggRows> rows = parse_choice<LossAggRows>(name)) return *rows;
  return Error{ErrorKind::kConfig, "loss_agg_rows must be nonempty or all, but is " + quote(name), "", ""};
}

void UpdateCounts::add(const UpdateCounts& other) {
  num_tokens += other.num_tokens;
  num_rows += other.num_rows;
  num_nonempty_rows += other.num_nonempty_rows;
  for (const auto& [group, tokens] : other.group_tokens) group_tokens[group] += tokens;
}

UpdateCounts count_update(std::span<const int64_t> row_offsets, std::span<const uint8_t> mask,
                          std::span<const int64_t> group_index) {
  UpdateCounts counts;
  for (size_t row = 0; row + 1 < row_offsets.size(); ++row) {
    const int64_t tokens = count_unmasked(mask, row_offsets[row], row_offsets[row + 1]);
    counts.num_tokens += tokens;
    counts.num_rows += 1;
    counts.num_nonempty_rows += tokens > 0 ? 1 : 0;
    counts.group_tokens[group_of(group_index, row)] += tokens;
  }
  return counts;
}

Result<void> token_weights(const TokenWeightOptions& options, const UpdateCounts& counts,
                           std::span<const int64_t> row_offsets, std::span<const uint8_t> mask,
                           std::span<const int64_t> group_index, std::span<float> weight) {
  const size_t rows = row_offsets.empty() ? 0 : row_offsets.size() - 1;
  const auto tokens = static_cast<size_t>(row_offsets.empty() ? 0 : row_offsets.back());
  if (mask.size() != tokens || weight.size() != tokens) return bug("mask or weight do not fit the rows");
  if (!group_index.empty() && group_index.size() != rows) return bug("group_index does not fit the rows");
  if (options.mode == LossAggMode::kSeqMeanTokenSumNorm && !(options.loss_scale_factor > 0)) {
    return Error{ErrorKind::kConfig, "loss_scale_factor must be above 0, is " + format_f64(options.loss_scale_factor),
                 "", ""};
  }
  const int64_t num_groups = options.rows == LossAggRows::kAll
                                 ? static_cast<int64_t>(counts.group_tokens.size())
                                 : std::count_if(counts.group_tokens.begin(), counts.group_tokens.end(),
                                                 [](const auto& g) { return g.second > 0; });
  for (size_t row = 0; row < rows; ++row) {
    const int64_t row_tokens = count_unmasked(mask, row_offsets[row], row_offsets[row + 1]);
    const auto group = counts.group_tokens.find(group_of(group_index, row));
    if (group == counts.group_tokens.end() || group->second < row_tokens)
      return bug("these rows are not in the counts");
    const auto w = static_cast<float>(row_weight(options, counts, num_groups, row_tokens, group->second));
    for (auto t = static_cast<size_t>(row_offsets[row]); t < static_cast<size_t>(row_offsets[row + 1]); ++t)
      weight[t] = mask[t] != 0 ? w : 0.0F;
  }
  return {};
}

}  // namespace mortise
