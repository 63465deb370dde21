// A line of a replay file: what is accepted has token ids and known reasons alone, and a fault says what is wrong.
#include <mortise/mortise.h>

#include <algorithm>

#include "fuzz/fuzz_support.h"
#include "rollout/replay_line.h"

namespace mortise {

void fuzz::run_one(const uint8_t* data, size_t size) {
  const auto line = read_replay_line(as_text(data, size));
  if (!line) {
    require(!line.fault().empty(), "a fault says what");
    return;
  }
  const auto are_ids = [](const std::vector<std::int64_t>& ids) {
    return std::all_of(ids.begin(), ids.end(), [](std::int64_t id) { return id >= 0; });
  };
  require(are_ids(line->prompt_ids), "prompt ids are not negative");
  for (const ReplayCompletion& completion : line->completions) {
    require(are_ids(completion.ids), "ids are not negative");
    require(completion.finish_reason >= 0 && completion.finish_reason <= MORTISE_FINISH_ABORT, "a known reason");
    require(!completion.ids.empty() || completion.finish_reason == MORTISE_FINISH_ABORT, "none is empty but aborted");
  }
}

}  // namespace mortise
