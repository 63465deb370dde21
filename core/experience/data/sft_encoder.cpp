// Encodes completions and chats for supervised learning, with the mask of learnt tokens.
#include "experience/data/sft_encoder.h"

#include <fmt/core.h>
#include <algorithm>
#include <utility>

#include "experience/data/misspelt_keys.h"
#include "foundation/base/text.h"
#include "text/tokenizer/assistant_mask.h"

namespace mortise {

namespace {

Error bad_sft_row(std::string what, const std::string& where, std::string next) {
  return Error{ErrorKind::kData, std::move(what), where, std::move(next)};
}

const Json* find_value(const Json& row, std::string_view key) {
  const Json* value = json_find(row, key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

// From the first learnt token to the end of the last. Nothing if there is none: the very first token is never a target.
std::optional<std::pair<size_t, size_t>> learnt_range(const std::vector<uint8_t>& learnt) {
  size_t first = 1;
  while (first < learnt.size() && learnt[first] == 0) ++first;
  if (first >= learnt.size()) return std::nullopt;
  size_t last = learnt.size() - 1;
  while (learnt[last] == 0) --last;
  return std::pair(first, last + 1);
}

}  // namespace

Result<SftEncoder> SftEncoder::create(const PromptEncoder& prompts, SftEncoderOptions options) {
  if (options.assistant_only_loss && !prompts.chats().marks_assistant()) {
    return Error{ErrorKind::kData,
                 "the chat template does not mark the assistant's text with {% generation %} ... {% endgeneration %}",
                 "sft.assistant_only_loss",
                 "set model.custom_chat_template to a template that does, or remove the key to learn all tokens"};
  }
  return SftEncoder(prompts, std::move(options));
}

Result<std::optional<Prompt>> SftEncoder::encode(const Json& row, const std::string& where) const {
  if (!row.is_object()) return bad_sft_row("a data row must be a JSON object", where, "write one object per line");
  const Json* response = find_value(row, options_.response_key);
  const Json* messages = find_value(row, options_.messages_key);
  if (response != nullptr && response->is_string()) return encode_text(row, response->get<std::string>(), where);
  if (response != nullptr && response->is_array()) {
    const Json* prompt = find_value(row, prompts_->options().prompt_key);
    if (prompt == nullptr) prompt = messages;
    if (prompt == nullptr || !prompt->is_array()) {
      return bad_sft_row(
          fmt::format("the completion {} is a list of messages, but the prompt is not", quote(options_.response_key)),
          where, "write both as messages, or both as text");
    }
    Json chat = *prompt;
    chat.insert(chat.end(), response->begin(), response->end());
    return encode_chat(row, chat, prompt, where);
  }
  if (response == nullptr && messages != nullptr && messages->is_array())
    return encode_chat(row, *messages, nullptr, where);
  const std::string known[] = {options_.response_key, options_.messages_key};
  const std::string hint = misspelt_key(row, known);
  return bad_sft_row(fmt::format("the row has neither a completion {} (text or messages) nor a chat {} (messages)",
                                 quote(options_.response_key), quote(options_.messages_key)),
                     where,
                     fmt::format("{}{}name the column with data.response_key or data.messages_key", hint,
                                 hint.empty() ? "" : " Otherwise "));
}

Result<std::optional<Prompt>> SftEncoder::encode_text(const Json& row, const std::string& text,
                                                      const std::string& where) const {
  if (options_.assistant_only_loss) {
    return bad_sft_row(
        "sft.assistant_only_loss needs rows that are chats, but this completion is text", where,
        "write prompt and completion as messages, or remove the key, because prompts are not learned anyway");
  }
  Prompt prompt = TRY(prompts_->encode(row, where, options_.vocab_size));
  if (options_.filter_overlong && prompts_->is_overlong(prompt)) return std::optional<Prompt>();
  TRY(prompts_->apply_length_policy(prompt, where));
  prompt.columns = Json::object();
  auto ids = prompts_->tokenizer().encode(text, /*add_special_tokens=*/false);
  if (!ids.ok()) return bad_sft_row(ids.error().what, where, ids.error().next);
  if (options_.end_id) ids->push_back(*options_.end_id);
  if (ids->empty()) return bad_sft_row("the completion has no tokens", where, "remove the row or give it a completion");
  TRY(check_ids(*ids, where));
  const auto length = static_cast<int64_t>(ids->size());
  if (length > options_.max_response_length) {
    return bad_sft_row(
        fmt::format("the completion has {} tokens including its end token, more than data.max_response_length = {}",
                    length, options_.max_response_length),
        where, "raise the limit or shorten the row");
  }
  prompt.response_ids = *std::move(ids);
  if (!options_.completion_only_loss.value_or(true)) {  // all tokens except the first, which nothing predicts
    prompt.response_ids.insert(prompt.response_ids.begin(), prompt.token_ids.begin() + 1, prompt.token_ids.end());
    prompt.token_ids.resize(1);
  }
  prompt.response_mask.assign(prompt.response_ids.size(), 1);
  return std::optional<Prompt>(std::move(prompt));
}

Result<std::optional<Prompt>> SftEncoder::encode_chat(const Json& row, const Json& messages, const Json* prompt,
                                                      const std::string& where) const {
  Tokens tokens = TRY(chat_tokens(row, messages, where));
  if (prompt != nullptr) {
    TRY(mask_prompt(row, *prompt, where, tokens));
  } else if (options_.completion_only_loss.value_or(false)) {
    return bad_sft_row(
        "sft.completion_only_loss needs rows with a prompt and a completion, but this one is a whole chat", where,
        "set sft.assistant_only_loss to learn the assistant's turns of chats");
  }
  TRY(check_ids(tokens.ids, where));
  if (!learnt_range(tokens.learnt)) {
    return bad_sft_row(
        options_.assistant_only_loss ? "the chat has no token of the assistant" : "the chat has no token to learn",
        where, "remove the row or add an answer of the assistant");
  }
  if (!TRY(fit(where, tokens))) return std::optional<Prompt>();
  const auto range = learnt_range(tokens.learnt);
  if (!range) return std::optional<Prompt>();  // truncation cut all tokens to learn
  const auto [first, last] = *range;
  const auto at = [](auto& items, size_t index) { return items.begin() + static_cast<std::ptrdiff_t>(index); };
  Prompt out;
  out.columns = Json::object();
  out.data_source = "unknown";
  out.messages = dump_json(prompts_->chats().with_system_prompt(messages));
  out.token_ids.assign(tokens.ids.begin(), at(tokens.ids, first));
  out.text = prompts_->tokenizer().decode(out.token_ids, /*skip_special_tokens=*/false);
  out.response_ids.assign(at(tokens.ids, first), at(tokens.ids, last));
  out.response_mask.assign(at(tokens.learnt, first), at(tokens.learnt, last));
  return std::optional<Prompt>(std::move(out));
}

Result<SftEncoder::Tokens> SftEncoder::chat_tokens(const Json& row, const Json& messages,
                                                   const std::string& where) const {
  const Rendered rendered = TRY(prompts_->chats().render(row, messages, /*add_generation_prompt=*/false, where));
  auto ids = prompts_->tokenizer().encode(rendered.text, /*add_special_tokens=*/false);
  if (!ids.ok()) return bad_sft_row(ids.error().what, where, ids.error().next);
  Tokens tokens;
  tokens.ids = *std::move(ids);
  tokens.learnt.assign(tokens.ids.size(), 1);
  if (!options_.assistant_only_loss) return tokens;
  auto mask = assistant_mask(prompts_->tokenizer(), rendered.text, tokens.ids, rendered.assistant_spans);
  if (!mask.ok()) return bad_sft_row(mask.error().what, where, mask.error().next);
  tokens.learnt = *std::move(mask);
  return tokens;
}

// The completion begins where the tokens of the prompt alone and of the whole differ.
Result<> SftEncoder::mask_prompt(const Json& row, const Json& prompt, const std::string& where, Tokens& tokens) const {
  if (!options_.completion_only_loss.value_or(true)) return {};
  const Rendered alone = TRY(prompts_->chats().render(row, prompt, /*add_generation_prompt=*/true, where));
  const auto ids = prompts_->tokenizer().encode(alone.text, /*add_special_tokens=*/false);
  if (!ids.ok()) return bad_sft_row(ids.error().what, where, ids.error().next);
  const auto parting = std::mismatch(ids->begin(), ids->end(), tokens.ids.begin(), tokens.ids.end()).second;
  std::fill_n(tokens.learnt.begin(), parting - tokens.ids.begin(), uint8_t{0});
  return {};
}

// False: the row is left out.
Result<bool> SftEncoder::fit(const std::string& where, Tokens& tokens) const {
  const auto length = static_cast<int64_t>(tokens.ids.size());
  if (options_.max_length <= 0 || length <= options_.max_length) return true;
  if (options_.filter_overlong) return false;
  if (prompts_->options().truncation == Truncation::kError) {
    return bad_sft_row(
        fmt::format("the chat has {} tokens, more than sft.max_length = {}", length, options_.max_length), where,
        "raise the limit, set data.truncation, or set data.filter_overlong_prompts = true");
  }
  prompts_->truncate(tokens.ids, options_.max_length);
  prompts_->truncate(tokens.learnt, options_.max_length);
  return true;
}

Result<> SftEncoder::check_ids(const std::vector<int64_t>& ids, const std::string& where) const {
  for (const int64_t id : ids) {
    if (options_.vocab_size <= 0 || id < options_.vocab_size) continue;
    return bad_sft_row(fmt::format("token id {} is outside the model's vocabulary of {}", id, options_.vocab_size),
                       where, "use the tokenizer of the model in model.path");
  }
  return {};
}

}  // namespace mortise
