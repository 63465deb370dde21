// The stages of a step, one function each. A stage's signature says what it reads and changes; its result, or the
// columns that it puts into the step's table, are what it is for.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "train/loop/parts.h"
#include "train/sampling/sampler.h"

namespace mortise {

// The next prompts, sampled on the current weights and scored: one batch of them, or with algorithm.filter_groups as
// many as it takes.
Result<Experience> experience_stage(const RunSettings& run, DataParts& data, Sampler& sampler, RewardRunner& reward,
                                    int64_t step, int64_t weight_version, MetricSet& metrics);

// The same for a run that samples ahead: groups that are left over belong to the next step at once.
Result<Experience> experience_ahead(const RunSettings& run, DataParts& data, Sampler& sampler, RewardRunner& reward,
                                    int64_t step, int64_t weight_version, MetricSet& metrics);

// Before the step's updates: what its groups have changed for later steps counts from now on. A run that samples ahead has
// the filter's part done by experience_ahead.
void commit_groups(DataParts& data, bool samples_ahead);

// If this process has not sampled the rows of the step, passes decode their tokens again to read what sampling computes of
// them: after a resume inside the step, or if a run with another trainer.mode has left the rows. Null: no pass reads it.
void read_given_rows(SampledForward* sampled, const StepTable& table);

// What sampling computes of these rows with the weights of now, with the same bits: after a resume inside the step, of
// another rank's rows, or of those that a run with another trainer.mode has left.
Result<> sample_again(const RunConfig& config, const Model& policy, const StepTable& table,
                      std::span<const int64_t> rows);

// The rewards of completions that are all there.
Result<> reward_stage(const RunSettings& run, PromptSource& source, RewardRunner& reward, Experience& experience,
                      int64_t step, MetricSet& metrics);

// reward_baselines: the reward of each prompt's greedy completion, on all its rows (ReMax).
Result<> greedy_baseline_stage(const RunSettings& run, Sampler& sampler, RewardRunner& reward,
                               const Experience& experience, StepTable& table, MetricSet& metrics);

// What the sampler's filters leave at each token, if training is over that (rollout.filtered_log_probs).
Result<> kept_tokens_stage(const RolloutPlan& plan, const ActorLearner& learner, StepTable& table, MetricSet& metrics);

// sum_pi_squared, under the current policy.
Result<> squared_probs_stage(const PolicyParts& policy, const ActorLearner& learner, StepTable& table,
                             MetricSet& metrics);

// old_log_prob with old_entropy, ref_log_prob and teacher_log_prob, as far as something reads them.
struct LogProbNeeds {
  bool old = false, reference = false, teacher = false;
};
// A KL over the whole vocabulary runs the reference by itself.
LogProbNeeds log_prob_needs(const RunSettings& run, const PolicyParts& policy, const AdvantageParts& advantage,
                            const LearnerParts& learning);
Result<> log_prob_stage(const RunSettings& run, const PolicyParts& policy, const LearnerParts& learning,
                        LogProbNeeds needs, StepTable& table, MetricSet& metrics);

// What the rollout correction makes of the samples: rollout_is_weights, and what it leaves of response_mask.
Result<> correction_stage(const RunSettings& run, const RolloutCorrection& correction, StepTable& table,
                          MetricSet& metrics);

// Scores, rewards with the KL penalty, advantages and returns; then what the teacher adds to the advantages.
Result<> advantage_stage(const RunSettings& run, AdvantageParts& advantage, const Experience& experience, int64_t step,
                         StepTable& table, MetricSet& metrics);

// Which rows the updates see: takes those beyond algorithm.best_of_n out of response_mask, and draws rows for PF-PPO
// into drawn_row.
void row_choice_stage(const RunSettings& run, const ScoredBatch& scored, int64_t step, StepTable& table);

// The rows that learners see: the table itself, or, if drawn_row is there, a table of the drawn ones in `drawn`.
const StepTable& learnt_rows(const StepTable& table, StepTable& drawn);

// The updates of the step that are still to do: mini-batches of prompts, ppo_epochs passes. Measures first_log_prob.
// Each takes its supervised rows from the data, if sft_mix has some. With
// actor.carry_rows they take the rows that wait first, and the step leaves other rows waiting.
struct UpdateHooks {
  // Calls `settle` before it reads counters or reports: the device may still compute the last update's norm.
  std::function<Result<>(const std::function<void()>& settle)> before;
  std::function<void()> after;  // the update is counted
};
Result<> update_stage(const RunSettings& run, DataParts& data, PolicyParts& policy, LearnerParts& learning,
                      RunProgress& progress, const UpdateHooks& hooks);

// The policy's own log-probs before it learns (first_log_prob). False: the first pass over the rows is to measure them.
// `is_first`: no update of the step is done.
bool put_first_log_prob(const RunSettings& run, const RolloutCorrection& correction, bool is_first, StepTable& table);

// The columns that updates cannot do without if the step has them.
std::vector<std::string> columns_of_updates(const ActorObjective& objective);

// How far the sampler lies from the policy that the step began with, once that is known.
void compare_with_sampler(const RunConfig& config, const RolloutCorrection& correction, const StepTable& table,
                          MetricSet& metrics);

// Counts what became of optimizer update number `update`, which `skipped` where its gradient was not finite, and tells of
// one that was.
void record_outcome(RunCounters& counters, int64_t update, bool skipped);

// An Error of kind kNumerics once more updates were skipped than trainer.nonfinite_update_limit allows.
Result<> check_skipped_updates(const RunConfig& config, const RunCounters& counters);

}  // namespace mortise
