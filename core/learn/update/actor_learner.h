// ActorLearner: log-probs of a batch, and optimizer updates of the policy on parts of it.
//
// An update runs its rows in micro-batches: packed forward, fused head, objective, backward. Losses local to a token
// run inside the head's chunks in one pass; row-level ones take a second look at the micro-batch's log-probs; losses
// coupled over groups or the update (a share of tokens by entropy is such a coupling) get one call on the log-probs of
// the whole update, taken without gradient, and their gradients are injected per micro-batch. That pass is saved where
// one micro-batch holds the update, and where the log-probs of the batch are the policy's as it stands. The gradient
// does not depend on how the rows are cut. Thread rule: one thread at a time; libtorch spreads the work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "foundation/metrics/registry.h"
#include "learn/objective/actor_objective.h"
#include "learn/optim/adamw.h"
#include "learn/update/learner_options.h"
#include "learn/update/packed_forward.h"
#include "learn/update/train_batch.h"
#include "learn/update/update_slice.h"
#include "model/head/log_prob_head.h"
#include "model/model.h"

namespace mortise {

struct UpdateReport {
  ObjectiveSums sums;
  double grad_norm = 0.0;  // before clipping
  double lr = 0.0;
  bool skipped = false;  // a log-prob or the gradient was not finite: no parameter was touched
  MetricSet metrics;     // of the plugins, over the whole update
};

class ActorLearner {
 public:
  ActorLearner(Model& model, AdamW& optimizer, ActorObjective& objective, const LearnerOptions& options);

  // log_prob [N] of every response token under `model` (the policy or the reference), without gradient. `passes` says
  // how the rows are cut; null: as in updates. `entropy` receives [N] too where it is not null.
  Result<std::vector<float>> log_probs(const Model& model, const TrainBatch& batch,
                                       const MicroBatchOptions* passes = nullptr,
                                       std::vector<float>* entropy = nullptr) const;

  // [N] sum of the squared probabilities of the vocabulary at every response token.
  Result<std::vector<float>> sums_of_squared_probs(const Model& model, const TrainBatch& batch) const;

  // One optimizer update on `rows` of the batch. Where batch.old_log_prob is empty the update's own log-probs stand for
  // it (ratio exactly 1). `log_prob_out` [N of the batch] receives the policy's log-probs of those rows; may be empty.
  Result<UpdateReport> update(const TrainBatch& batch, std::span<const int64_t> rows, double lr, int64_t step,
                              int64_t update_index, std::span<float> log_prob_out = {});

  // Do updates look beyond the rows of a micro-batch, so that the entropy of the old policy is of use to them?
  [[nodiscard]] bool sees_whole_update() const { return objective_->coupling() > Coupling::kRow; }

 private:
  struct Update;  // one call of update()
  Result<UpdateSlice> slice(const Update& update, std::span<const int64_t> rows) const;
  // `d_extra_RH`: what else goes back through the micro-batch's hidden states; may be undefined.
  Result<> backward_one_pass(UpdateSlice& slice, const PackedForward& forward, const at::Tensor& d_extra_RH,
                             UpdateReport& report);
  Result<> backward_two_pass(UpdateSlice& slice, const PackedForward& forward, const at::Tensor& d_extra_RH,
                             UpdateReport& report);
  Result<> backward_whole_update(Update& update, UpdateSlice& whole, UpdateReport& report);
  Result<> measure_whole_update(Update& update, UpdateSlice& whole, std::vector<TokenNorm>& norms) const;
  void inject(const PackedForward& forward, std::span<float> grad_log_prob, std::span<float> grad_entropy,
              std::span<const TokenNorm> norms, const at::Tensor& d_extra_RH);
  Result<> accumulate(Update& update, UpdateReport& report);

  Model* model_;
  AdamW* optimizer_;
  ActorObjective* objective_;
  LearnerOptions options_;
};

}  // namespace mortise
