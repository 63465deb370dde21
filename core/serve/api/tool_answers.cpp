// Holds a growing text back where a call may begin, and writes calls in the API's form.
#include "serve/api/tool_answers.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "serve/api/answers.h"
#include "text/tools/tool_calls.h"

namespace mortise {

CallText::CallText(const Tokenizer& tokenizer, ToolFormat format, bool skips_special_tokens)
    : format_(format),
      whole_decoder_(tokenizer.incremental_decoder(false)),
      visible_decoder_(tokenizer.incremental_decoder(skips_special_tokens)) {}

void CallText::push(int64_t id) {
  whole_ += whole_decoder_.push(id);
  visible_ += visible_decoder_.push(id);
  if (length_without_calls(whole_, format_) < whole_.size()) return;
  shown_ = visible_;
  shown_of_whole_ = whole_.size();
}

std::string CallText::before_calls() const {
  const size_t end = length_without_calls(whole_, format_);  // within a token
  return shown_ + whole_.substr(shown_of_whole_, std::max(end, shown_of_whole_) - shown_of_whole_);
}

Json tool_calls_of(const CompletionCall& call, const ServedTexts& texts, size_t request,
                   const ServedSequence& sequence) {
  Json out = Json::array();
  if (!call.tool_format) return out;
  const std::string text = channel_text(call, call.requests[request], texts, sequence);
  const std::vector<ToolCall> calls = find_tool_calls(text, *call.tool_format, call.tools);
  if (std::ranges::any_of(calls, [](const ToolCall& one) { return !one.fault.empty(); })) return out;
  for (const ToolCall& one : calls) {
    out.push_back({{"id", fmt::format("call_{}_{}_{}", call.call_id, sequence.sample_index, out.size())},
                   {"type", "function"},
                   {"function", {{"name", one.name}, {"arguments", dump_json(one.arguments)}}}});
  }
  return out;
}

}  // namespace mortise
