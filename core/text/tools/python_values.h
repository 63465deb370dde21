// Calls with keyword arguments in Python's notation, f(a=1, b="x"), for the pythonic form of tool calls. Values are
// literals: numbers, strings, True, False, None, lists, tuples and dicts. Thread rule: free functions without state.
#pragma once

#include <string_view>
#include <vector>

#include "text/tools/tool_calls.h"

namespace mortise {

// The calls in "[f(a=1), g()]". Nothing if the text is not such a list; a call with a fault if it begins like one.
std::vector<ToolCall> read_python_calls(std::string_view text);

}  // namespace mortise
