#include "learn/update/sft_learner.h"

#include <ATen/ops/empty_like.h>

#include "learn/update/finite_step.h"
#include "learn/update/packed_forward.h"
#include "model/head/log_prob_head.h"

namespace mortise {

Result<SftReport> sft_update(Model& model, AdamW& optimizer, const TrainBatch& batch, const LearnerOptions& options,
                             double lr) {
  SftReport report;
  for (const uint8_t m : batch.response_mask) report.num_tokens += m;
  if (report.num_tokens == 0) return report;
  const double weight = 1.0 / static_cast<double>(report.num_tokens);
  std::vector<int64_t> rows(static_cast<size_t>(batch.num_rows()));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);

  model.zero_grad();
  for (const std::vector<int64_t>& micro : plan_micro_batches(batch, rows, options.micro_batch)) {
    std::vector<uint8_t> mask;
    for (const int64_t row : micro) {
      const auto r = static_cast<size_t>(row);
      mask.insert(mask.end(), batch.response_mask.begin() + batch.row_offsets[r],
                  batch.response_mask.begin() + batch.row_offsets[r + 1]);
    }
    if (mask.empty()) continue;
    const PackedForward forward = TRY(forward_rows(model, batch, micro, options.pass));
    const at::Tensor d_hidden_RH = at::empty_like(forward.hidden_RH);
    const auto on_chunk = [&](const HeadChunk& chunk) {
      for (int64_t t = chunk.begin; t < chunk.end; ++t) {
        if (mask[static_cast<size_t>(t)] == 0) continue;
        const auto i = static_cast<size_t>(t - chunk.begin);
        report.loss -= weight * chunk.log_prob[i];
        chunk.grad_log_prob[i] = -weight;
      }
    };
    head_one_pass(forward.hidden_RH, model.head(), forward.targets_R, /*temperature=*/1.0, EntropyUse::kNone, on_chunk,
                  d_hidden_RH, model.head_grad(), options.head);
    forward.backward(d_hidden_RH);
  }
  const FiniteStep done = step_if_finite(model, optimizer, report.loss, lr, options.grad_clip);
  report.grad_norm = done.grad_norm;
  report.skipped = done.skipped;
  return report;
}

}  // namespace mortise
