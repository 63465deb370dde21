// See tool_answer.h.
#include "experience/rollout/turns/tool_answer.h"

#include <fmt/core.h>

#include <string_view>
#include <vector>

namespace mortise {
namespace {

// Where each code point begins, and the end of the text.
std::vector<size_t> starts_of_characters(std::string_view text) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U) starts.push_back(i);
  }
  starts.push_back(text.size());
  return starts;
}

}  // namespace

std::string cut_tool_answer(std::string text, int64_t most, TruncateSide side) {
  if (text.size() <= static_cast<size_t>(most)) return text;
  const std::vector<size_t> starts = starts_of_characters(text);
  const size_t length = starts.size() - 1;
  const auto limit = static_cast<size_t>(most);
  if (length <= limit) return text;
  if (side == TruncateSide::kLeft) return text.substr(0, starts[limit]) + "...(truncated)";
  if (side == TruncateSide::kRight) return "(truncated)..." + text.substr(starts[length - limit]);
  const size_t half = limit / 2;
  return fmt::format("{}...(truncated)...{}", text.substr(0, starts[half]), text.substr(starts[length - half]));
}

}  // namespace mortise
