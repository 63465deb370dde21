#include "learn/update/critic_learner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>

#include <numeric>

#include "learn/objective/value_objective.h"
#include "learn/update/finite_step.h"
#include "learn/update/packed_forward.h"

namespace mortise {

namespace {

// [R] of the micro-batch's response tokens, row by row.
at::Tensor values_of(const Model& model, const PackedForward& forward) {
  return at::matmul(forward.selected_RH, model.head_weight().t()).squeeze(-1);
}

std::vector<float> floats_of(const at::Tensor& values) {
  const at::Tensor plain = values.detach().to(at::kFloat).contiguous();
  const float* data = plain.const_data_ptr<float>();
  return {data, data + plain.numel()};
}

// The tokens of some rows out of a flat [N] column.
template <class T>
std::vector<T> tokens_of(const TrainBatch& batch, std::span<const int64_t> rows, std::span<const T> column) {
  std::vector<T> out;
  for (const int64_t row : rows) {
    const auto r = static_cast<size_t>(row);
    out.insert(out.end(), column.begin() + batch.row_offsets[r], column.begin() + batch.row_offsets[r + 1]);
  }
  return out;
}

struct RowLayout {
  std::vector<int64_t> offsets{0}, groups;
};

RowLayout layout_of(const TrainBatch& batch, std::span<const int64_t> rows) {
  RowLayout out;
  for (const int64_t row : rows) {
    out.offsets.push_back(out.offsets.back() + batch.row_tokens(row));
    out.groups.push_back(batch.group_index[static_cast<size_t>(row)]);
  }
  return out;
}

}  // namespace

Result<std::vector<float>> CriticLearner::values(const TrainBatch& batch) const {
  const at::NoGradGuard no_grad;
  std::vector<float> out(static_cast<size_t>(batch.num_tokens()), 0.0F);
  std::vector<int64_t> rows(static_cast<size_t>(batch.num_rows()));
  std::iota(rows.begin(), rows.end(), 0);
  for (const std::vector<int64_t>& micro : plan_micro_batches(batch, rows, options_.learner.micro_batch)) {
    const PackedForward forward = TRY(forward_rows(*model_, batch, micro, options_.learner.pass));
    const std::vector<float> values = floats_of(values_of(*model_, forward));
    size_t from = 0;
    for (const int64_t row : micro) {
      const auto r = static_cast<size_t>(row);
      for (auto t = static_cast<size_t>(batch.row_offsets[r]); t < static_cast<size_t>(batch.row_offsets[r + 1]);
           ++t, ++from) {
        if (batch.response_mask[t] != 0) out[t] = values[from];
      }
    }
  }
  return out;
}

Result<> CriticLearner::backward(const TrainBatch& batch, std::span<const int64_t> micro, std::span<const float> values,
                                 std::span<const float> returns, const UpdateCounts& counts, CriticReport& report) {
  const PackedForward forward = TRY(forward_rows(*model_, batch, micro, options_.learner.pass));
  if (forward.targets_R.numel() == 0) return {};
  const at::Tensor vpreds_R = values_of(*model_, forward);
  const RowLayout layout = layout_of(batch, micro);
  const std::vector<float> vpreds = floats_of(vpreds_R), old = tokens_of(batch, micro, values),
                           targets = tokens_of(batch, micro, returns);
  const std::vector<uint8_t> mask = tokens_of(batch, micro, std::span<const uint8_t>(batch.response_mask));
  std::vector<float> weight(mask.size()), grad(mask.size());
  TRY(token_weights(options_.aggregation, counts, layout.offsets, mask, layout.groups, weight));
  report.loss += value_objective({vpreds, old, targets, mask, weight}, options_.cliprange_value, grad, report.metrics);
  const at::Tensor grad_R = at::from_blob(grad.data(), {static_cast<int64_t>(grad.size())}, at::kFloat);
  vpreds_R.backward(grad_R.to(vpreds_R.scalar_type()));
  forward.count_backward();
  return {};
}

Result<CriticReport> CriticLearner::update(const TrainBatch& batch, std::span<const int64_t> rows,
                                           std::span<const float> values, std::span<const float> returns, double lr) {
  CriticReport report;
  const RowLayout layout = layout_of(batch, rows);
  const std::vector<uint8_t> mask = tokens_of(batch, rows, std::span<const uint8_t>(batch.response_mask));
  const UpdateCounts counts = count_update(layout.offsets, mask, layout.groups);
  model_->zero_grad();
  for (const std::vector<int64_t>& micro : plan_micro_batches(batch, rows, options_.learner.micro_batch))
    TRY(backward(batch, micro, values, returns, counts, report));
  const FiniteStep done = step_if_finite(*model_, *optimizer_, report.loss, lr, options_.learner.grad_clip);
  report.grad_norm = done.grad_norm;
  report.skipped = done.skipped;
  return report;
}

}  // namespace mortise
