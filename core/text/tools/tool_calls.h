// Tool calls in the text of an assistant turn, in the form that the model's chat template has (ToolFormat).
//
// The text is untrusted: a call that cannot be read is not an error of the run but a call with a fault, which goes back
// to the model. Cost: linear in the text. Thread rule: free functions without state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "foundation/batch/tool_format.h"
#include "foundation/formats/json.h"

namespace mortise {

struct ToolCall {
  std::string name;
  Json arguments = Json::object();
  std::string fault;  // why the call cannot be read; "": it can
};

// The calls in order; none: the turn calls no tool. `text` has its special tokens, without the end token. `tools`: the
// list that the prompt offers, for the types of arguments that a form writes as plain text; null: none.
std::vector<ToolCall> find_tool_calls(std::string_view text, ToolFormat format, const Json& tools);

// How many bytes at the start of a turn that is still being written belong to no call, whatever follows.
size_t length_without_calls(std::string_view text, ToolFormat format);

// The list as environments get it: [{"name", "arguments"} or {"error"}, ...]. A faulty call has a "name" too, if it
// is known.
Json tool_calls_json(const std::vector<ToolCall>& calls);

}  // namespace mortise
