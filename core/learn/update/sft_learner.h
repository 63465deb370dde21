// Supervised updates: the mean negative log-likelihood of the response tokens of some rows (prompts carry no loss).
// Same packing, head and optimizer as the policy's updates. Thread rule: one thread at a time.
#pragma once

#include "foundation/metrics/registry.h"
#include "learn/optim/optimizer.h"
#include "learn/update/learner_options.h"
#include "learn/update/micro_batches.h"
#include "model/model.h"

namespace mortise {

struct SftReport {
  double loss = 0.0;  // mean over the unmasked response tokens, nats, plus the losses of routers
  double grad_norm = 0.0;
  int64_t num_tokens = 0;
  bool skipped = false;  // the gradient was not finite
  MetricSet metrics;     // what the routers of a mixture of experts tell
};

struct SftPlace {
  double lr = 0.0;
  int64_t update_index = 1;  // in the run
};

Result<SftReport> sft_update(Model& model, Optimizer& optimizer, const StepTable& table, const LearnerOptions& options,
                             const SftPlace& place);

}  // namespace mortise
