// CriticLearner: values of the response tokens by a model with a head of one label, and its updates towards the
// returns.
//
// The value of token j is read at the position before it, as in verl. Packed micro-batches as the policy's; the
// gradient does not depend on how the rows are cut, nor on how many ranks share the micro-batches. Thread rule: one
// thread at a time; libtorch spreads the work.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "foundation/batch/token_weight.h"
#include "foundation/metrics/registry.h"
#include "learn/optim/optimizer.h"
#include "learn/update/finite_step.h"
#include "learn/update/leaf_report.h"
#include "learn/update/learner_options.h"
#include "learn/update/micro_batches.h"
#include "model/model.h"

namespace mortise {

struct CriticOptions {
  double cliprange_value = 0.5;
  TokenWeightOptions aggregation;
  LearnerOptions learner;  // the head's part and the temperature have no meaning here
};

struct CriticReport {
  double loss = 0.0;
  double lr = 0.0;
  double grad_norm = 0.0;  // before clipping
  bool skipped = false;    // the gradient was not finite: no parameter was touched
  MetricSet metrics;
};

// Where in the run an update is.
struct CriticPlace {
  CriticPlace(double rate) : lr([rate] { return rate; }) {}  // NOLINT: a rate that is known
  CriticPlace(std::function<double()> rate, FiniteStep& step) : lr(std::move(rate)), open_step(&step) {}

  std::function<double()> lr;  // asked behind the passes, when the device has done the step before
  // Receives the step. The update then does not wait for the device: report_step() sets the report's grad_norm and skipped
  // later. Null: it waits.
  FiniteStep* open_step = nullptr;
};

class CriticLearner {
 public:
  CriticLearner(Model& model, Optimizer& optimizer, const CriticOptions& options)
      : model_(&model), optimizer_(&optimizer), options_(options) {
    options_.learner.micro_batch.sets_idle_rows_apart = false;  // values are learnt whatever the advantage is
  }

  // [N], without gradient; 0 at masked tokens.
  Result<std::vector<float>> values(const StepTable& table) const;

  // One optimizer update on `rows` of the table towards its returns, clipped around its values.
  Result<CriticReport> update(const StepTable& table, std::span<const int64_t> rows, const CriticPlace& place);

 private:
  // A micro-batch up to its backward pass.
  Result<LeafReport> compute(const StepTable& table, std::span<const int64_t> micro, const UpdateCounts& counts,
                             std::function<void()>& backward);

  Model* model_;
  Optimizer* optimizer_;
  CriticOptions options_;
};

}  // namespace mortise
