// Which form of tool calls a model writes, found from its chat template: the template renders a call, and the reader that
// finds this call again is the right one. Cost: one or two renderings. Thread rule: pure function.
#pragma once

#include <optional>

#include "foundation/batch/tool_format.h"
#include "text/tokenizer/chat_templates.h"

namespace mortise {

// Nothing: there is no template, or it renders no call, or in a form that Mortise does not read.
std::optional<ToolFormat> tool_format_of(const ChatTemplates& templates);

}  // namespace mortise
