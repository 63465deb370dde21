// ActorLearner: log-prob passes and optimizer updates of the policy over a TrainBatch.
//
// Packed, padding-free micro-batches with the prompts of groups computed once; token-local objectives run inside the
// head's chunks in one pass, row-coupled ones in two, those coupled further get one call on the log-probs of the whole
// update, taken without gradient, and their gradients are injected per micro-batch. The gradient does not depend on how
// the rows are cut. Thread rule: one thread at a time; libtorch spreads the work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "foundation/metrics/registry.h"
#include "learn/objective/actor_objective.h"
#include "learn/optim/adamw.h"
#include "learn/update/packed_forward.h"
#include "learn/update/train_batch.h"
#include "model/head/log_prob_head.h"
#include "model/model.h"

namespace mortise {

struct LearnerOptions {
  double temperature = 1.0;  // divides the logits of every log-prob
  double grad_clip = 1.0;
  MicroBatchOptions micro_batch;
};

struct UpdateReport {
  ObjectiveSums sums;
  double grad_norm = 0.0;  // before clipping
  double lr = 0.0;
  bool skipped = false;  // the gradient was not finite: no parameter was touched
  MetricSet metrics;     // of the plugins, over the whole update
};

class ActorLearner {
 public:
  ActorLearner(Model& model, AdamW& optimizer, ActorObjective& objective, const LearnerOptions& options);

  // log_prob [N] of every response token under `model` (the policy or the reference), without gradient. `passes` says
  // how the rows are cut; null: as in updates.
  Result<std::vector<float>> log_probs(const Model& model, const TrainBatch& batch,
                                       const MicroBatchOptions* passes = nullptr) const;

  // [N] sum of the squared probabilities of the vocabulary at every response token.
  Result<std::vector<float>> sums_of_squared_probs(const Model& model, const TrainBatch& batch) const;

  // One optimizer update on `rows` of the batch. Where batch.old_log_prob is empty the update's own log-probs stand for
  // it (ratio exactly 1). `log_prob_out` [N of the batch] receives the policy's log-probs of those rows; may be empty.
  Result<UpdateReport> update(const TrainBatch& batch, std::span<const int64_t> rows, double lr, int64_t step,
                              int64_t update_index, std::span<float> log_prob_out = {});

 private:
  struct Slice;
  Result<Slice> slice(const TrainBatch& batch, std::span<const int64_t> rows, std::span<const int64_t> row_id,
                      const UpdateCounts& counts, int64_t step, int64_t update_index) const;
  Result<> backward_one_pass(Slice& slice, const PackedForward& forward, UpdateReport& report);
  Result<> backward_two_pass(Slice& slice, const PackedForward& forward, UpdateReport& report);
  Result<> backward_whole_update(const TrainBatch& batch, std::span<const int64_t> rows,
                                 const std::vector<std::vector<int64_t>>& micro_batches, Slice& whole,
                                 UpdateReport& report);
  Result<> accumulate(const TrainBatch& batch, std::span<const int64_t> rows, int64_t step, int64_t update_index,
                      std::span<float> log_prob_out, UpdateReport& report);

  Model* model_;
  AdamW* optimizer_;
  ActorObjective* objective_;
  LearnerOptions options_;
};

}  // namespace mortise
