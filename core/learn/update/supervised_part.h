// SupervisedPart: recorded rows of an update, and for each of their micro-batches the loss and its gradient:
//   L = sum over the learnt tokens of w_t phi_t (-log p_t),  phi_t = p_t (1 - p_t) without gradient, or 1
// The weights w_t depend on all rows of the update, never on how they are cut. `mortise sft` learns nothing else. In
// reinforcement learning, the update's loss is (1 - mu) L_rl + mu L (CHORD, arXiv 2508.11408). Logits are not divided by
// rollout.temperature. Thread rule: one thread at a time; libtorch spreads the work.
#pragma once

#include <cstdint>
#include <vector>

#include "learn/update/gradient_sum.h"
#include "learn/update/leaf_report.h"
#include "learn/update/learner_options.h"
#include "model/model.h"

namespace mortise {

class RouterLosses;

// Recorded rows, and how their tokens count.
struct SupervisedRows {
  const StepTable* table = nullptr;  // borrowed; response_mask says what is learnt
  bool phi = false;
  int64_t rows_per_mean = 0;  // L is the mean of the means over so many rows each; 0: one mean over all tokens
};

class SupervisedPart {
 public:
  SupervisedPart(const SupervisedRows& rows, const LearnerOptions& options);

  [[nodiscard]] int64_t num_tokens() const { return num_tokens_; }  // that are learnt
  [[nodiscard]] size_t num_micro_batches() const { return plan_.size(); }
  [[nodiscard]] const MicroPlan& plan() const { return plan_; }
  // Tokens that a pass over each micro-batch computes.
  [[nodiscard]] std::vector<int64_t> loads() const { return micro_tokens(*rows_.table, plan_); }

  // The forward pass of a micro-batch. `backward` is then its backward pass, and the report has its part of L in
  // sums.loss. The gradient is that of `coefficient` L, the head's already added. `routers`: null, or the losses of the
  // routers in `pass`. `reference`: whose forward pass other ranks may have in this round (help_forward()).
  Result<LeafReport> compute(const Model& model, size_t micro, const PassOptions& pass, double coefficient,
                             BackwardPass& backward, RouterLosses* routers = nullptr,
                             const Model* reference = nullptr) const;

 private:
  SupervisedRows rows_;
  HeadOptions head_;
  MicroPlan plan_;
  int64_t num_tokens_ = 0;
  std::vector<double> row_weight_;  // w_t, by row
};

}  // namespace mortise
