// How ranks share passes that read what sampling has computed (model/layers/sampled_forward.h). A rank has the numbers of the
// rows that it has sampled. A row's home is the rank that samples it unless another one is faster
// (train/sampling/prompt_queue.h). Who learns a row depends on the table alone, never on who was faster: so a run adds
// the same numbers in the same order each time. A rank makes the numbers of rows that it lacks itself, with the same bits.
#pragma once

#include <span>
#include <vector>

#include "learn/update/learner_options.h"
#include "learn/update/rank_share.h"

namespace mortise {

// The micro-batches of an update. If it reads what sampling has computed, each has rows of one home, which lie side by side
// in the store.
[[nodiscard]] MicroPlan plan_update(const StepTable& table, std::span<const int64_t> rows,
                                    const LearnerOptions& options, bool reads_sampled);
// What each costs: its tokens, and twice as much again if it runs backward.
[[nodiscard]] std::vector<int64_t> update_loads(const StepTable& table, const MicroPlan& plan);

// Each micro-batch to the home of most of its rows, unless that rank then has too much. `loads` as RankShare takes them;
// those behind the plan's are of other rows, which nobody has sampled.
[[nodiscard]] RankShare share_by_home(const StepTable& table, const MicroPlan& plan, std::span<const int64_t> loads,
                                      const RankOptions& ranks);

// Makes the numbers of the rows of this rank's micro-batches that its store lacks.
Result<> sample_missing(const StepTable& table, const MicroPlan& plan, const RankShare& share,
                        const LearnerOptions& options);

}  // namespace mortise
