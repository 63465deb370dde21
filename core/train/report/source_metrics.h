// The scores of a step by the data source of the rows. Pure function.
#pragma once

#include "foundation/batch/prompt_batch.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/scored_batch.h"
#include "foundation/metrics/registry.h"

namespace mortise {

// train-core/SOURCE/reward/mean of each source, if the step has rows of 2 to 64 sources. Empty completions and rows without a
// reward are left out, as in critic/score/mean.
void add_source_metrics(const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                        MetricSet& metrics);

}  // namespace mortise
