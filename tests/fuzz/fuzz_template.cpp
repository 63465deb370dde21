// A chat template of anybody: parsing and rendering end within their bounds, whatever is written there.
#include "fuzz/fuzz_support.h"
#include "text/template/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mortise;
  static const Json messages = Json::parse(R"([{"role":"system","content":"s"},{"role":"user","content":"1+1=?"},
      {"role":"assistant","content":"2","tool_calls":[{"function":{"name":"f","arguments":{"x":1}}}]}])");
  const auto parsed = ChatTemplate::parse(fuzz::as_text(data, size), "input");
  if (!parsed.ok()) {
    fuzz::require(!parsed.error().what.empty(), "an error says what");
    return 0;
  }
  const RenderInput input{.messages = messages,
                          .tools = {},
                          .documents = {},
                          .add_generation_prompt = true,
                          .kwargs = {{"bos_token", "<s>"}},
                          .now_s = 0};
  const auto rendered = parsed->render(input);
  if (!rendered.ok()) return 0;
  for (const TextRange& range : rendered->assistant_spans) {
    fuzz::require(range.begin <= range.end && range.end <= rendered->text.size(), "a span lies in the text");
  }
  const auto again = parsed->render(input);
  fuzz::require(again.ok() && again->text == rendered->text, "rendering twice gives the same text");
  return 0;
}
