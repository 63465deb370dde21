// ActorLearner: log-probs of a batch, and optimizer updates of the policy on parts of it.
//
// An update runs its rows in micro-batches: packed forward, fused head, objective, backward. Losses local to a token
// run inside the head's chunks in one pass. Row-level losses look at the micro-batch's log-probs a second time. Losses
// coupled over groups or the update (the entropy quantile is such a coupling) get one call on the log-probs of the
// whole update, computed without gradient, and their gradients are injected per micro-batch. That pass is skipped if
// one micro-batch is the update, or if the log-probs of the batch are the current policy's. The gradient does not
// depend on the split of the rows. The ranks share the micro-batches of every pass; what depends on all of them runs on
// every rank alike. Every rank calls the same functions with the same table, and gets the same results.
// Thread rule: one thread at a time; libtorch spreads the work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "foundation/metrics/registry.h"
#include "learn/objective/actor_objective.h"
#include "learn/optim/optimizer.h"
#include "learn/update/finite_step.h"
#include "learn/update/gradient_sum.h"
#include "learn/update/kept_pass.h"
#include "learn/update/leaf_report.h"
#include "learn/update/learner_options.h"
#include "learn/update/micro_batches.h"
#include "learn/update/packed_forward.h"
#include "learn/update/supervised_part.h"
#include "learn/update/update_slice.h"
#include "learn/update/vocabulary_terms.h"
#include "model/head/log_prob_head.h"
#include "model/model.h"

namespace mortise {

struct UpdateReport {
  ObjectiveSums sums;
  double grad_norm = 0.0;  // before clipping
  double lr = 0.0;
  bool skipped = false;  // a log-prob or the gradient was not finite: no parameter was touched
  MetricSet metrics;     // the plugins' metrics over the whole update
};

// [N of the table] each: what an update saw of the tokens of its rows. Empty: not kept.
struct TokenTrace {
  std::span<float> log_prob = {}, entropy = {}, clipped = {};
};

// Supervised rows of an update: its loss is (1 - mu) times that of the policy's rows plus mu times theirs.
struct SupervisedMix {
  SupervisedRows rows;  // none without a table
  double mu = 0.0;
};

// Where in the run an update is.
struct UpdatePlace {
  double lr = 0.0;
  int64_t step = 1;
  int64_t update_index = 1;
  bool reads_sampled = false;          // no update was made since the rows of LearnerOptions::sampled were sampled
  bool old_is_current = false;         // no update was made since old_log_prob and old_entropy were measured
  std::span<float> log_prob_out = {};  // [N of the table] receives the policy's log-probs of the rows; may be empty
  TokenTrace trace = {};
  SupervisedMix mix = {};
  // Receives the step. The update then does not wait for the device: report_step() sets the report's grad_norm and skipped
  // later. Null: it waits.
  FiniteStep* open_step = nullptr;
};

struct PolicyUpdate;  // policy_update.h

class ActorLearner {
 public:
  ActorLearner(Model& model, Optimizer& optimizer, ActorObjective& objective, const LearnerOptions& options);

  // log_prob [N] of every response token of the table under `model` (the policy or the reference), without gradient.
  // `passes` says how the rows are cut; null: as in updates. `entropy` receives [N] too where it is not null.
  // The policy takes the experts of the table again, if it has some. `experts` receives those that rows took, if not null.
  Result<std::vector<float>> log_probs(const Model& model, const StepTable& table,
                                       const MicroBatchOptions* passes = nullptr, std::vector<float>* entropy = nullptr,
                                       ExpertChoices* experts = nullptr) const;

  // [N] sum of the squared probabilities of the vocabulary at every response token.
  Result<std::vector<float>> sums_of_squared_probs(const Model& model, const StepTable& table) const;

  // Puts what the sampler's penalties, bars and filters leave at each token under the current weights into the table.
  // All its log-probs, by this and other models, are over that from then on. `sampling` is that of the rows.
  Result<KeptCount> keep_tokens(StepTable& table, const Sampling& sampling) const;

  // One optimizer update on `rows` of the table. Without old_log_prob the update's own log-probs stand for it (ratio
  // exactly 1).
  Result<UpdateReport> update(const StepTable& table, std::span<const int64_t> rows, const UpdatePlace& place);

  // Do updates look beyond the rows of a micro-batch, so that the entropy of the old policy is of use to them?
  [[nodiscard]] bool sees_whole_update() const { return objective_->coupling() > Coupling::kRow; }
  // Are the log-probs of updates not those of the policy that samples?
  [[nodiscard]] bool has_dropout() const { return model_->lora_dropout() > 0.0 || options_.pass.noise_alpha > 0.0; }

 private:
  Result<UpdateSlice> slice(const PolicyUpdate& update, std::span<const int64_t> rows) const;
  [[nodiscard]] LogProbs head_probs(const Model& model, const PackedForward& forward, const KeptTokens& kept,
                                    bool want_entropy) const;
  // A micro-batch up to its backward pass, which runs at the end of the round. With sequence parallel it takes two passes:
  // the objective sees the log-probs of all ranks of the group. `share`: the factor of the objective's
  // gradient. `d_extra_RH`: what else goes back through its hidden states; may be undefined.
  Result<BackwardPass> one_pass(UpdateSlice& slice, const PackedForward& forward, double share,
                                const at::Tensor& d_extra_RH, LeafReport& report);
  Result<BackwardPass> two_pass(UpdateSlice& slice, const PackedForward& forward, double share,
                                const at::Tensor& d_extra_RH, LeafReport& report);
  Result<VocabularyTerms> extra_terms(PolicyUpdate& update, const UpdateSlice& part, const PackedForward& forward,
                                      LeafReport& leaf);
  Result<LeafReport> compute_rows(PolicyUpdate& update, const std::vector<int64_t>& micro, BackwardPass& backward);
  Result<LeafReport> compute_injected(PolicyUpdate& update, const std::vector<int64_t>& micro, const UpdateSlice& whole,
                                      std::span<const TokenNorm> norms, BackwardPass& backward);
  Result<> backward_whole_update(PolicyUpdate& update, UpdateReport& report, std::vector<LeafReport>& leaves,
                                 GradientSum& gradient);
  Result<> measure_whole_update(const PolicyUpdate& update, UpdateSlice& whole, std::vector<TokenNorm>& norms) const;
  BackwardPass inject(const PackedForward& forward, const KeptTokens& kept, double share,
                      std::span<float> grad_log_prob, std::span<float> grad_entropy, std::span<const TokenNorm> norms,
                      const at::Tensor& d_extra_RH);
  // The reference, if its passes are part of the update's rounds.
  [[nodiscard]] const Model* reference_of_rounds() const {
    return objective_->uses_full_kl() ? options_.reference : nullptr;
  }
  Result<> accumulate(PolicyUpdate& update, UpdateReport& report);

  Model* model_;
  Optimizer* optimizer_;
  ActorObjective* objective_;
  LearnerOptions options_;
};

}  // namespace mortise
