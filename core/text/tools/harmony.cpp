// See harmony.h.
#include "text/tools/harmony.h"

#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {
namespace {

// "analysis" of "<|channel|>analysis to=functions.f".
std::string_view channel_of(std::string_view header) {
  const size_t at = header.rfind(harmony::kChannel);
  if (at == std::string_view::npos) return {};
  std::string_view name = header.substr(at + harmony::kChannel.size());
  return trim(name.substr(0, name.find_first_of(" \t\n<")));
}

// How much of the end of `text` may be the beginning of a special token.
size_t open_token(std::string_view text) {
  const size_t longest = std::min(harmony::kReturn.size() - 1, text.size());
  const size_t at = text.find("<|", text.size() - longest);
  if (at != std::string_view::npos) return text.size() - at;
  return text.ends_with('<') ? 1 : 0;
}

}  // namespace

void HarmonyText::push(std::string_view piece) {
  rest_ += piece;
  while (body_ == Body::kNone ? take_header() : take_body(/*is_last=*/false)) {
  }
}

void HarmonyText::finish() {
  if (body_ != Body::kNone)
    take_body(/*is_last=*/true);
  else if (!has_messages_ && rest_.find(harmony::kChannel) == std::string::npos)
    answer += rest_;
  rest_.clear();
}

std::string& HarmonyText::text_of_body() {
  if (body_ == Body::kCall) return calls;
  return body_ == Body::kReasoning ? reasoning : answer;
}

bool HarmonyText::take_header() {
  const size_t end = rest_.find(harmony::kMessage);
  if (end == std::string::npos) return false;
  const std::string header = rest_.substr(0, end);
  rest_.erase(0, end + harmony::kMessage.size());
  const bool is_call = header.find("to=") != std::string::npos;
  body_ = channel_of(header) == "analysis" && !is_call ? Body::kReasoning : Body::kAnswer;
  if (is_call && !keeps_calls_) body_ = Body::kCall;
  has_messages_ = true;
  std::string& text = text_of_body();
  if (!text.empty()) text += '\n';
  if (is_call) text += header + std::string(harmony::kMessage);
  return true;
}

bool HarmonyText::take_body(bool is_last) {
  using namespace harmony;
  size_t end = std::string::npos;
  std::string_view token;
  for (const std::string_view one : {kEnd, kCall, kReturn, kStart}) {
    const size_t at = rest_.find(one);
    if (at >= end) continue;
    end = at;
    token = one;
  }
  const size_t held = is_last || end != std::string::npos ? 0 : open_token(rest_);
  text_of_body() += rest_.substr(0, end == std::string::npos ? rest_.size() - held : end);
  if (end == std::string::npos) {
    rest_.erase(0, rest_.size() - held);
    return false;
  }
  rest_.erase(0, end + (token == kStart ? 0 : token.size()));  // a message without an end
  body_ = Body::kNone;
  return true;
}

}  // namespace mortise
