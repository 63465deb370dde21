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

#include "config/run_config.h"
#include "dist/communicator.h"
#include "experience/data/dataset.h"
#include "experience/reward/reward_runner.h"
#include "experience/rollout/rollout_runner.h"
#include "foundation/metrics/registry.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

struct ValidationReport {
  MetricSet metrics;
  double mean_reward = 0.0;  // over all rows of all sources
  int64_t num_rows = 0;      // rows with a reward
  PromptBatch prompts;
  SampleBatch samples;
  ScoredBatch scored;
};

// What a validation takes. Borrows all but the runner.
struct Validator {
  const RunConfig& config;
  const Dataset& data;
  const Tokenizer& tokenizer;
  RewardRunner& reward;
  RolloutRunner rollout;  // always the native one
  RolloutPlan plan;
  Communicator& ranks;  // which share the prompts

  // Completions of the weights of `weight_version`, scored. `step` is the number of steps done.
  Result<ValidationReport> validate(int64_t step, int64_t weight_version);
};

// Expected maximum of k values drawn without replacement. Precondition: 1 <= k <= values.size().
double expected_best_of(std::vector<double> values, int64_t k);

// The metrics of some scored completions; n = completions per prompt, rows in prompt-major order.
void add_validation_metrics(const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                            MetricSet& metrics);

}  // namespace mortise
