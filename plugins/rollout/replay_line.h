// A line of a replay file, as far as the line alone can be judged; replay.cpp compares it with the request. Cost: the
// parsed line and its ids in memory. No exception of the JSON library leaves read_replay_line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parse/outcome.h"

namespace mortise {

struct ReplayCompletion {
  std::int32_t finish_reason = 0;          // MORTISE_FINISH_*
  std::vector<std::int64_t> ids{};         // may be empty if aborted
  std::vector<float> log_prob{};           // one per id, at temperature; empty: not recorded
  std::vector<float> filtered_log_prob{};  // one per id, after penalties and filters; empty: not recorded
  std::vector<bool> is_sampled{};          // one per id of a row with several turns, false: an observation; else empty
  bool environment_failed = false;         // on a row with several turns, after the last of them
};

struct ReplayLine {
  std::vector<std::int64_t> prompt_ids;
  std::vector<ReplayCompletion> completions;
  // The place in the group, in a completion dump (trainer.rollout_data_dir), which has a line per completion. -1: the line
  // has all completions of its prompt.
  std::int64_t sample_index = -1;
  bool has_turns = false;  // a completion dump of a run with rollout.multi_turn
  std::int64_t step = -1;  // the step of the run that wrote the completion dump; -1: the line has none
};

// The line, or what is wrong with it.
parse::Outcome<ReplayLine, std::string> read_replay_line(std::string_view line);

}  // namespace mortise
