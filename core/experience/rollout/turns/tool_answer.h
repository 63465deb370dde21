// A tool's answer cut to the length that the config allows. Thread rule: a free function without state.
#pragma once

#include <cstdint>
#include <string>

#include "config/keys/multi_turn.h"

namespace mortise {

// At most `most` characters (code points) of the answer, and the mark "(truncated)" where the rest was.
std::string cut_tool_answer(std::string text, int64_t most, TruncateSide side);

}  // namespace mortise
