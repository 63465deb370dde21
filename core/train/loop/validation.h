// Validation: completions for every validation prompt, scored by the run's rewards, summed up per data source.
//
// Each number that rewards give is summed up over the N completions of a prompt, then averaged over a source's prompts:
//   mean@N, std@N                            mean and standard deviation (ddof 0)
//   stderr@N                                 standard error of mean@N over the prompts (ddof 1), from two prompts on
//   pass@k                                   expected best of k, exact and without bias, for any k <= N
//   best@k/{mean,std}, worst@k/..., maj@k/...  verl's bootstrap (val_statistics.h)
//   vote@N                                   the value of the answer that most of the N agree on
// Answers are the texts that a reward names "pred", else whole completions. As in verl, val-core/{source}/ has mean@N,
// best@N and maj@N of "reward" and "acc" (with pass@k and vote@N), and val-aux/{source}/ all else, with num_turns. The
// source of a set of data.val_sets is its name, with the rows' own behind a slash. eval_* are TRL's names. Rows to
// which no reward applies are left out. Thread rule: one thread.
#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "config/val_sets.h"
#include "dist/communicator.h"
#include "experience/data/dataset.h"
#include "experience/reward/reward_runner.h"
#include "experience/rollout/rollout_runner.h"
#include "foundation/metrics/registry.h"
#include "text/tokenizer/tokenizer.h"
#include "train/sampling/sampler.h"

namespace mortise {

struct ValidatedSet {
  std::string name;  // "": data.val_files
  PromptBatch prompts;
  SampleBatch samples;
  ScoredBatch scored;
};

struct ValidationReport {
  MetricSet metrics;
  double mean_reward = 0.0;  // over all rows of all sets
  int64_t num_rows = 0;      // rows with a reward
  std::vector<ValidatedSet> sets;
};

// One set, and how it is sampled. Borrows both.
struct ValidationPart {
  const ValSet* set;
  const Dataset* rows;
  RolloutPlan plan;
};

// What a validation takes. Borrows all but the runner and the parts.
struct Validator {
  const RunConfig& config;
  const Tokenizer& tokenizer;
  RewardRunner& reward;
  RolloutRunner rollout;       // the native one
  Sampler* sampler = nullptr;  // samples in its place; null: it does not (rollout.val_engine)
  std::vector<ValidationPart> parts;
  RoundRanks& ranks;  // which share the prompts

  // Completions of the weights of `weight_version`, scored. `step` is the number of steps done.
  Result<ValidationReport> validate(int64_t step, int64_t weight_version);

 private:
  Result<ValidatedSet> validate_set(const ValidationPart& part, int64_t step, int64_t weight_version);
  Result<SampleBatch> sample(const PromptBatch& prompts, const RolloutPlan& plan, int64_t weight_version);
};

// The metrics of some scored completions; N = completions per prompt, rows in prompt-major order. `pass_k`: the k of
// pass@k, else 1, 2, 4 ... below N, and N.
void add_validation_metrics(const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                            MetricSet& metrics, const std::string& set = "", std::vector<int64_t> pass_k = {});

}  // namespace mortise
