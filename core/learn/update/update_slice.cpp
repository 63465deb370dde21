// Gathers the token inputs of some rows from the batch.
#include "learn/update/update_slice.h"

#include <array>

namespace mortise {

UpdateCounts count_rows(const StepTable& table, std::span<const int64_t> rows) {
  UpdateCounts counts;
  for (const int64_t row : rows) {
    const std::array<int64_t, 2> offsets{0, table.row_tokens(row)};
    counts.add(count_update(offsets, table.of_row<column::ResponseMask>(row), std::span(&table.row(row).group, 1)));
  }
  return counts;
}

Result<UpdateSlice> make_slice(const StepTable& step, std::span<const int64_t> rows, std::vector<int64_t> row_id,
                               const ActorObjective& objective, const UpdateCounts& counts) {
  UpdateSlice out;
  out.on_policy = !step.has<column::OldLogProb>();
  out.rows.assign(rows.begin(), rows.end());
  out.table = step.take(rows, std::move(row_id));
  TRY(put_weights(objective.aggregation(), counts, out.table));
  if (const auto& own = objective.kl_aggregation()) TRY(put_weights<column::KlWeight>(*own, counts, out.table));
  if (const auto& own = objective.entropy_aggregation())
    TRY(put_weights<column::EntropyWeight>(*own, counts, out.table));
  out.table.make<column::LogProb>();
  out.table.make<column::Entropy>();
  if (out.on_policy) out.table.make<column::OldLogProb>();
  const auto tokens = static_cast<size_t>(out.table.num_tokens());
  out.grad_log_prob.resize(tokens);
  out.grad_entropy.resize(tokens);
  return out;
}

}  // namespace mortise
