// CriticLearner: values of the response tokens by a model with a head of one label, and its updates towards the
// returns.
//
// The value of token j is read at the position before it, as in verl. Packed micro-batches as the policy's; the
// gradient does not depend on how the rows are cut. Thread rule: one thread at a time; libtorch spreads the work.
#pragma once

#include <span>
#include <vector>

#include "foundation/batch/token_weight.h"
#include "foundation/metrics/registry.h"
#include "learn/optim/adamw.h"
#include "learn/update/learner_options.h"
#include "learn/update/train_batch.h"
#include "model/model.h"

namespace mortise {

struct CriticOptions {
  double cliprange_value = 0.5;
  TokenWeightOptions aggregation;
  LearnerOptions learner;  // the head's part and the temperature have no meaning here
};

struct CriticReport {
  double loss = 0.0;
  double grad_norm = 0.0;  // before clipping
  bool skipped = false;    // the gradient was not finite: no parameter was touched
  MetricSet metrics;
};

class CriticLearner {
 public:
  CriticLearner(Model& model, AdamW& optimizer, const CriticOptions& options)
      : model_(&model), optimizer_(&optimizer), options_(options) {}

  // [N], without gradient; 0 at masked tokens.
  Result<std::vector<float>> values(const TrainBatch& batch) const;

  // One optimizer update on `rows` of the batch towards returns [N], clipped around the old values [N].
  Result<CriticReport> update(const TrainBatch& batch, std::span<const int64_t> rows, std::span<const float> values,
                              std::span<const float> returns, double lr);

 private:
  Result<> backward(const TrainBatch& batch, std::span<const int64_t> micro, std::span<const float> values,
                    std::span<const float> returns, const UpdateCounts& counts, CriticReport& report);

  Model* model_;
  AdamW* optimizer_;
  CriticOptions options_;
};

}  // namespace mortise
