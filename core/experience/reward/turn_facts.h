// What a reward may know about the turns of a row: the column `turn_info`, a JSON object.
//
//   num_turns     turns of the model and answers to them, and 1 for the prompt, as verl counts them
//   tool_rewards  the environment's reward for each turn whose tools were called, in order
//   turn_scores   its reward for each turn that it answered otherwise
// The reward `python` adds them to extra_info, where functions that were written for verl look for them. Pure functions.
#pragma once

#include <string_view>

#include "foundation/base/result.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/formats/json.h"

namespace mortise {

inline constexpr std::string_view kTurnInfo = "turn_info";

// Precondition: the row has turns (SampleTurns::num_assistant > 0).
Json turn_facts(const Sample& sample);

}  // namespace mortise
