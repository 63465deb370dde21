// Renders a short conversation with a mark, and keeps what follows the mark.
#include "experience/rollout/turns/turn_renderer.h"

#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {
namespace {

// The text of a made-up assistant turn. No template changes such a word.
constexpr std::string_view kMark = "mortiseassistantturn";
constexpr std::string_view kAnswer = "mortiseanswerofatool";
constexpr const char* kTemplatePlace = "model.path: the chat template";

Json question() { return {{"role", "user"}, {"content", "mortisequestion"}}; }
Json marked_turn() { return {{"role", "assistant"}, {"content", kMark}}; }
Json calling_turn(const std::string& tool) {
  const Json call = {{"type", "function"}, {"function", {{"name", tool}, {"arguments", Json::object()}}}};
  return {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}};
}

Error no_turns(const std::string& why) {
  return {ErrorKind::kConfig, "the chat template cannot continue a conversation after a turn: " + why, kTemplatePlace,
          "name another template with model.custom_chat_template, or set rollout.multi_turn.enable = false"};
}

Error no_end_of_call() {
  return {ErrorKind::kConfig, "none of the model's end tokens is the one with which the chat template ends a call",
          "model.path: the end tokens", "add the id of that token to eos_token_id in generation_config.json"};
}

bool is_answer(const Json& message) { return message.value("role", "") == "tool"; }
std::string name_of(const Json& answer) { return answer.value("name", "tool"); }

}  // namespace

Result<TurnRenderer> TurnRenderer::create(const Tokenizer& tokenizer, ChatRenderer chats, std::vector<int64_t> stop_ids,
                                          bool has_tools) {
  TurnRenderer made(tokenizer, std::move(chats), std::move(stop_ids));
  const Result<> checked = made.check(has_tools);
  if (has_tools && !checked.ok()) made.needs_calls_ = TRY(made.answers_calls());
  if (!checked.ok() && !made.needs_calls_) return checked.error();
  return made;
}

Result<> TurnRenderer::check(bool has_tools) const {
  const Json row = Json::object();
  const auto before = chats_.render(row, Json::array({question()}), /*add_generation_prompt=*/false, kTemplatePlace);
  if (!before.ok()) return no_turns(before.error().what);
  Json answer = {{"role", has_tools ? "tool" : "user"}, {"content", kAnswer}};
  if (has_tools) answer.update(Json{{"name", "f"}, {"tool_call_id", "000000001"}});
  const Json all = Json::array({question(), marked_turn(), answer});
  const auto rendered = chats_.render(row, all, /*add_generation_prompt=*/true, kTemplatePlace);
  if (!rendered.ok()) return no_turns(rendered.error().what);
  const std::string& text = rendered->text;
  if (text.find(kMark) == std::string::npos)
    return no_turns("it leaves out what the assistant said before the last message");
  if (text.find(kAnswer, text.find(kMark)) == std::string::npos) {
    return no_turns(has_tools ? "it leaves out messages with the role 'tool'"
                              : "it leaves out messages of the user after the first");
  }
  if (!text.starts_with(before->text))
    return no_turns("it writes earlier messages in another way when further ones follow (it is not prefix-preserving)");
  return {};
}

// An Error where such a template would do, but for the model's end tokens.
Result<bool> TurnRenderer::answers_calls() const {
  if (!check(/*has_tools=*/false).ok()) return false;
  const Json row = Json::object();
  const std::string tool(kMark);
  Json all = Json::array({question()});
  const auto before = chats_.render(row, all, /*add_generation_prompt=*/false, kTemplatePlace);
  all.push_back(calling_turn(tool));
  const auto turn = chats_.render(row, all, /*add_generation_prompt=*/false, kTemplatePlace);
  all.push_back({{"role", "tool"}, {"name", tool}, {"tool_call_id", "000000001"}, {"content", kAnswer}});
  const auto after = chats_.render(row, all, /*add_generation_prompt=*/true, kTemplatePlace);
  if (!before.ok() || !turn.ok() || !after.ok()) return false;
  if (!turn->text.starts_with(before->text) || !after->text.starts_with(turn->text)) return false;
  if (turn->text.find(kMark) == std::string::npos) return false;
  if (after->text.find(kAnswer, turn->text.size()) == std::string::npos) return false;
  if (!end_of_call(turn->text)) return no_end_of_call();
  return true;
}

bool TurnRenderer::ends_with_stop(std::span<const int64_t> sampled) const {
  return !sampled.empty() && std::ranges::find(stop_ids_, sampled.back()) != stop_ids_.end();
}

std::string TurnRenderer::turn_text(std::span<const int64_t> sampled) const {
  if (ends_with_stop(sampled)) sampled = sampled.first(sampled.size() - 1);
  return tokenizer_->decode(sampled, /*skip_special_tokens=*/false);
}

// Where the token begins that ends the turn with a call, the last of `text`.
std::optional<size_t> TurnRenderer::end_of_call(const std::string& text) const {
  for (const int64_t id : stop_ids_) {
    const std::string end = tokenizer_->decode(std::vector<int64_t>{id}, /*skip_special_tokens=*/false);
    const size_t at = text.rfind(end);
    if (!end.empty() && at != std::string::npos && trim(std::string_view(text).substr(at + end.size())).empty())
      return at;
  }
  return std::nullopt;
}

// The first answers follow the token that ends the turn, and the last ones end with the prompt for the next turn.
Result<std::string> TurnRenderer::text_after_call(const Json& columns, const Json& answers, bool is_first,
                                                  bool is_last) const {
  constexpr const char* kWhere = "rollout.multi_turn";
  Json all = Json::array({question(), calling_turn(name_of(answers.front()))});
  const Rendered turn = TRY(chats_.render(columns, all, /*add_generation_prompt=*/false, kWhere));
  all.insert(all.end(), answers.begin(), answers.end());
  const Rendered rendered = TRY(chats_.render(columns, all, /*add_generation_prompt=*/is_last, kWhere));
  if (!rendered.text.starts_with(turn.text))
    return no_turns(
        "it writes a turn with a call in another way when the answer follows (it is not prefix-preserving)");
  if (!is_first) return rendered.text.substr(turn.text.size());
  const std::optional<size_t> end = end_of_call(turn.text);
  if (!end) return no_end_of_call();
  return rendered.text.substr(*end);
}

// Answers of one function after another are rendered together.
Result<std::string> TurnRenderer::text_after_calls(const Json& columns, const Json& messages) const {
  std::string out;
  for (size_t begin = 0, end = 0; begin < messages.size(); begin = end) {
    const auto is_of_first = [&](const Json& m) { return !is_answer(m) || name_of(m) == name_of(messages[begin]); };
    Json answers = Json::array();
    for (end = begin; end < messages.size() && is_of_first(messages[end]); ++end) answers.push_back(messages[end]);
    out += TRY(text_after_call(columns, answers, begin == 0, end == messages.size()));
  }
  return out;
}

Result<std::string> TurnRenderer::text_after_turn(const Json& columns, const Json& messages) const {
  if (needs_calls_ && is_answer(messages.front())) return text_after_calls(columns, messages);
  Json all = Json::array({question(), marked_turn()});
  all.insert(all.end(), messages.begin(), messages.end());
  const Rendered rendered = TRY(chats_.render(columns, all, /*add_generation_prompt=*/true, "rollout.multi_turn"));
  const size_t at = rendered.text.find(kMark);
  if (at == std::string::npos) return no_turns("it leaves out what the assistant said");
  return rendered.text.substr(at + kMark.size());
}

Result<std::vector<int64_t>> TurnRenderer::suffix(const Prompt& prompt, std::span<const int64_t> sampled,
                                                  const Json& messages) const {
  std::string text = TRY(text_after_turn(prompt.columns, messages));
  if (ends_with_stop(sampled)) {
    // The template ends the turn with the token that the model has sampled, at once or after a line break.
    const std::string end = tokenizer_->decode(sampled.last(1), /*skip_special_tokens=*/false);
    const std::string_view spaces = trim(std::string_view(text).substr(0, text.find(end)));
    if (!end.empty() && text.find(end) != std::string::npos && spaces.empty())
      text.erase(0, text.find(end) + end.size());
  }
  return tokenizer_->encode(text, /*add_special_tokens=*/false);
}

Result<std::vector<int64_t>> TurnRenderer::prompt_with(const Prompt& prompt, const Json& messages) const {
  Json all = TRY(parse_json(prompt.messages, "messages of a prompt"));
  for (const Json& message : messages) {
    const bool may_join = !all.empty() && all.back().value("role", "") == "user" && message.value("role", "") == "user";
    if (may_join && all.back()["content"].is_string() && message["content"].is_string())
      all.back()["content"] =
          all.back()["content"].get<std::string>() + message["content"].get_ref<const std::string&>();
    else
      all.push_back(message);
  }
  const Rendered rendered =
      TRY(chats_.render(prompt.columns, all, /*add_generation_prompt=*/true, "rollout.multi_turn"));
  return tokenizer_->encode(rendered.text, /*add_special_tokens=*/false);
}

}  // namespace mortise
