// The messages of gpt-oss's harmony format in a completion: each is a header, <|message|> and a body. The channel in the
// header says whom the body is for: analysis is the model's reasoning, final is the answer.
//
// Cost: linear in the text. Thread rule: plain values.
#pragma once

#include <string>
#include <string_view>

namespace mortise {

namespace harmony {
inline constexpr std::string_view kStart = "<|start|>", kMessage = "<|message|>", kChannel = "<|channel|>";
inline constexpr std::string_view kEnd = "<|end|>", kCall = "<|call|>", kReturn = "<|return|>";
}  // namespace harmony

// Takes the text of a completion, with its special tokens, piece by piece, and tells reasoning and answer apart. Bodies
// of other channels than analysis are part of the answer. A call of a tool is too, with its header, so that a client can
// read it. Two bodies of a kind have a line break between them.
class HarmonyText {
 public:
  // keeps_calls: false leaves out calls of tools, for a client that gets them otherwise.
  explicit HarmonyText(bool keeps_calls = true) : keeps_calls_(keeps_calls) {}
  void push(std::string_view piece);
  // The end of the completion: text that never had the form of a message is the answer.
  void finish();

  // What comes next belongs to a body of reasoning that has begun.
  [[nodiscard]] bool is_in_reasoning() const { return body_ == Body::kReasoning; }

  std::string reasoning, answer;  // so far
  std::string calls;              // that the answer leaves out

 private:
  bool take_header();
  bool take_body(bool is_last);
  std::string& text_of_body();

  bool keeps_calls_;
  std::string rest_;  // not yet told apart
  enum class Body { kNone, kReasoning, kAnswer, kCall };
  Body body_ = Body::kNone;  // none: in a header
  bool has_messages_ = false;
};

}  // namespace mortise
