// Runs this rank's micro-batches, and puts the numbers of all ranks in their places.
#include "learn/update/column_pass.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "foundation/batch/float_bytes.h"
#include "learn/update/sampled_share.h"

namespace mortise {

namespace {

std::string bytes_of_columns(const std::vector<at::Tensor>& columns) {
  std::string bytes;
  for (const at::Tensor& column : columns) {
    const at::Tensor plain = on_host(column.detach()).to(at::kFloat).contiguous();
    bytes += float_bytes({plain.const_data_ptr<float>(), static_cast<size_t>(plain.numel())});
  }
  return bytes;
}

}  // namespace

Result<> run_column_pass(const Model& model, const StepTable& table, const MicroBatchOptions& cut,
                         const LearnerOptions& options, std::string_view stage, const ColumnCompute& compute,
                         std::span<std::vector<float>* const> out) {
  const c10::NoGradGuard no_grad;
  for (std::vector<float>* column : out) column->assign(static_cast<size_t>(table.num_tokens()), 0.0F);
  const MicroPlan plan = plan_micro_batches(table, all_rows(table), cut);
  const bool reads_sampled = options.pass.sampled != nullptr;
  const std::vector<int64_t> loads = micro_tokens(table, plan);
  const RankShare share =
      reads_sampled ? share_by_home(table, plan, loads, options.ranks) : RankShare(loads, options.ranks);
  if (reads_sampled) TRY(sample_missing(table, plan, share, options));
  std::vector<std::string> parts(plan.size());
  for (const std::optional<size_t>& micro : share.rounds()) {
    if (micro) {
      const PackedForward forward = TRY(forward_rows(model, table, plan[*micro], options.pass));
      std::vector<at::Tensor> columns = compute(forward, plan[*micro]);
      TRY(check_tensor_ranks(model));
      for (at::Tensor& column : columns) column = forward.targets.whole(column.detach());
      if (options.pass.sequence != nullptr) TRY(options.pass.sequence->status());
      parts[*micro] = bytes_of_columns(columns);
      show_micro_batch(stage, *micro, plan.size());
    }
    TRY(finish_forward({&model}));
  }
  TRY(share.exchange(parts, stage));
  for (size_t i = 0; i < plan.size(); ++i) {
    const std::vector<float> values = floats_of_bytes(parts[i]);
    int64_t num_tokens = 0;
    for (const int64_t row : plan[i]) num_tokens += table.row_tokens(row);
    if (values.size() != static_cast<size_t>(num_tokens) * out.size()) {
      return Error{ErrorKind::kInternal, "a rank sent numbers of other rows than its share", std::string(stage),
                   "start all ranks with the same settings and data"};
    }
    auto from = values.begin();
    for (std::vector<float>* column : out) {
      for (const int64_t row : plan[i]) {
        std::copy_n(from, table.row_tokens(row), column->begin() + table.row_offsets()[static_cast<size_t>(row)]);
        from += table.row_tokens(row);
      }
    }
  }
  return {};
}

}  // namespace mortise
