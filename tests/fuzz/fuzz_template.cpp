// A hostile chat template, and a message after the first zero byte. Parsing and rendering end within their limits.
#include <algorithm>

#include "foundation/base/text.h"
#include "fuzz/fuzz_support.h"
#include "text/template/chat_template.h"

namespace mortise {
namespace {

#if defined(MORTISE_ASAN) || defined(MORTISE_FUZZ)
constexpr double kWorkShare = 0.02;  // a unit of work takes far longer there, and inputs that spend it all are common
#else
constexpr double kWorkShare = 1;
#endif

}  // namespace

void fuzz::run_one(const uint8_t* data, size_t size) {
  const std::string_view bytes = fuzz::as_text(data, size);
  const size_t cut = std::min(bytes.find('\0'), bytes.size());
  static const Json conversation = Json::parse(R"([{"role":"system","content":"s"},{"role":"user","content":"1+1=?"},
      {"role":"assistant","content":"2","tool_calls":[{"function":{"name":"f","arguments":{"x":1}}}]}])");
  Json messages = conversation;
  const std::string_view content = bytes.substr(std::min(cut + 1, bytes.size()));
  if (!content.empty() && !find_invalid_utf8(content)) messages[1]["content"] = std::string(content);
  const auto parsed = ChatTemplate::parse(bytes.substr(0, cut), "input");
  if (!parsed.ok()) {
    fuzz::require(!parsed.error().what.empty(), "an error says what");
    return;
  }
  const RenderInput input{.messages = messages,
                          .tools = {},
                          .documents = {},
                          .add_generation_prompt = true,
                          .kwargs = {{"bos_token", "<s>"}},
                          .now_s = 0,
                          .work_share = kWorkShare};
  const auto rendered = parsed->render(input);
  if (!rendered.ok()) return;
  fuzz::require(rendered->text.size() <= (size_t{10} << 20) + 4 * (size + 1024), "the output is bounded");
  for (const TextRange& range : rendered->assistant_spans) {
    fuzz::require(range.begin <= range.end && range.end <= rendered->text.size(), "a span lies in the text");
  }
  const auto again = parsed->render(input);
  fuzz::require(again.ok() && again->text == rendered->text, "rendering twice gives the same text");
}

}  // namespace mortise
