// The pass that finds what the sampler's filters leave at each response token, without gradient. The ranks share the
// micro-batches, and every rank gets all of it. Private to this folder, but for KeptCount.
//
// Cost: a forward pass, and all logits of 64 tokens at a time in memory.
#pragma once

#include <cstdint>

#include "foundation/batch/sampling.h"
#include "foundation/batch/step_table.h"
#include "learn/update/learner_options.h"
#include "model/model.h"

namespace mortise {

struct KeptCount {
  int64_t num_tokens = 0;   // sampled ones
  int64_t num_kept = 0;     // what the filters left at them, in all
  int64_t num_missing = 0;  // sampled tokens that the filters would drop now: the sampler's numbers were others
};

// Tokens that are not of the sample_mask keep themselves alone.
Result<KeptCount> put_kept_tokens(const Model& model, StepTable& table, const Sampling& sampling,
                                  const LearnerOptions& options);

}  // namespace mortise
