// Samples a batch of prompts with the engines of all ranks. The ranks take prompts from a shared queue (prompt_queue.h),
// with all completions of each, or groups of ranks that sample together do. Then every rank has the whole batch in prompt
// order. Random numbers depend on the row, so the completions are the same for any number of ranks, whoever sampled them.
//
// A backend that keeps state (mortise.state/1: its place in a file) would give other completions if it saw only some of
// the prompts. The main rank samples all of them then.
#pragma once

#include <functional>
#include <span>

#include "config/run_config.h"
#include "experience/rollout/rollout_runner.h"
#include "experience/rollout/row_segments.h"
#include "train/sampling/round_ranks.h"

namespace mortise {

// As RolloutRunner::collect. `on_prompt` is called for the prompts of this rank only. `on_turn(batch, wait_ms)` is also
// called when these are done, until all ranks have sampled theirs; it may then wait for so long.
Result<SampleBatch> collect_on_ranks(RoundRanks& ranks, RolloutRunner& runner, const PromptBatch& prompts,
                                     RolloutPlan plan, const RolloutConfig& config, const Tokenizer& tokenizer,
                                     MetricSet* metrics,
                                     const std::function<Result<>(const SampleBatch&, int64_t)>& on_prompt = {},
                                     const std::function<Result<>(const SampleBatch&, int)>& on_turn = {});

// As RolloutRunner::collect_segments. The ranks take prompts with unfinished rows from a shared queue as well. Which rows
// get a piece, and what they get, does not depend on who samples them.
Result<> collect_segments_on_ranks(RoundRanks& ranks, RolloutRunner& runner, std::span<const OpenRows> batches,
                                   RolloutPlan plan, const RolloutConfig& config, const Tokenizer& tokenizer,
                                   MetricSet& metrics);

}  // namespace mortise
