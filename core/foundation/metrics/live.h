// The live view of this process's run: stages say how far they are, and the terminal and RUN/live.json show it.
//
// Without live_begin() nothing is shown: in ranks other than the main one, and in commands that are no run. The main rank
// shows for each stage the rank that has least of it done (rank_progress.h). The terminal is drawn at most ten times a
// second. The file is written at most once a second. Nothing depends on it, and a failure to write it is not told.
// Cost of a call that draws nothing: two locks and a look at the clock. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "foundation/base/env.h"
#include "foundation/metrics/sinks.h"

namespace mortise {

struct LiveOptions {
  Path file;                 // empty: none
  bool on_terminal = false;  // if standard error is one
  int64_t first_step = 0;    // steps done before this process
  int64_t total_steps = 0;   // 0: unknown
};

// A stage of a step, as people read it. Stages with a lower place are shown above those with a higher one, whichever is
// told first; stages of one place in the order in which they began.
struct LiveStageName {
  std::string_view text;
  int place = 2;
};
// The rewards of rows are shown below the sampling of these rows.
inline constexpr LiveStageName kSamplingStage{"sampling", 0}, kValidationStage{"validation", 0};
inline constexpr LiveStageName kRewardStage{"rewards", 1}, kValidationRewardStage{"val reward", 1};

void live_begin(Env& env, const LiveOptions& options);
// A step begins: it has no stages yet.
void live_step(int64_t step);
// A stage has done so many of its parts. `pending` were begun and are not done.
void live_stage(LiveStageName name, std::string_view unit, int64_t done, int64_t total, int64_t pending = 0);
// The numbers of a step that is done.
void live_numbers(const MetricRow& row);
// How the run ended: "done", "stopped", "failed". Removes the view from the terminal. Only the first call counts.
void live_end(std::string_view how);

}  // namespace mortise
