// Validation: completions for every validation prompt, scored by the run's rewards, summed up per data source.
//
// val-core/{source}/reward/mean@N  mean over prompts and their N completions
//   std@N/mean   mean over prompts of the standard deviation over the N (ddof 0)
//   best@k/mean  expected best of k of the N, exact (no bootstrap): for 0/1 rewards this is pass@k of arXiv 2107.03374
//   maj@N/mean   reward of the completion text that most of the N agree on
// val-core/{source}/acc, where a reward tells a number of that name, has the same; val-aux/ has it of every other
// number and of each of several rewards, worst@k/mean, and num_turns; eval_* are TRL's names. Rows to which no reward
// applies are left out. Thread rule: one thread.
#pragma once

#include <vector>

#include "foundation/metrics/registry.h"
#include "train/run_parts.h"

namespace mortise {

struct ValidationReport {
  MetricSet metrics;
  double mean_reward = 0.0;  // over all rows of all sources
  int64_t num_rows = 0;      // rows with a reward
  PromptBatch prompts;
  SampleBatch samples;
  ScoredBatch scored;
};

// Says that the validation after `step`, whose updates are kept, failed, and what a resume does about it.
void tell_failed_validation(int64_t step);

// Needs val_data, val_rollout and reward. `step` is the number of steps done.
Result<ValidationReport> validate(RunParts& parts, int64_t step);

// Expected maximum of k values drawn without replacement. Precondition: 1 <= k <= values.size().
double expected_best_of(std::vector<double> values, int64_t k);

// The metrics of some scored completions; n = completions per prompt, rows in prompt-major order.
void add_validation_metrics(const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                            MetricSet& metrics);

}  // namespace mortise
