// Encodes the forms of a prompt, applies the length limit, and collects the data columns.
#include "experience/data/prompt_encoder.h"

#include <fmt/core.h>
#include <utility>

#include "experience/data/misspelt_keys.h"
#include "foundation/base/text.h"
#include "foundation/formats/json_number.h"

namespace mortise {

namespace {

constexpr const char* kGiveIds = "give the ids of tokens, as in [1, 5, 7]";

// Columns that are the prompt itself, or that the engine reads by name, do not reach the rewards twice.
bool is_prompt_column(std::string_view name, std::string_view prompt_key) {
  return name == prompt_key || name == "messages" || name == "prompt_token_ids";
}

Result<std::vector<int64_t>> ids_of(const Json& value, std::string_view where) {
  if (!value.is_array()) {
    return Error{ErrorKind::kData, "'prompt_token_ids' must be a list of integers", std::string(where), kGiveIds};
  }
  std::vector<int64_t> ids;
  ids.reserve(value.size());
  for (const Json& id : value) {
    if (!is_i64(id)) {
      const char* const what = id.is_number_integer() ? "a token id" : "an integer";
      return Error{ErrorKind::kData, fmt::format("'prompt_token_ids' has {}, which is not {}", dump_json(id), what),
                   std::string(where), kGiveIds};
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

Result<> check_ids(const std::vector<int64_t>& ids, int64_t vocab_size, std::string_view where) {
  if (ids.empty()) {
    return Error{ErrorKind::kData, "the prompt has no tokens", std::string(where),
                 "remove the row or give it a prompt"};
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && (vocab_size <= 0 || ids[i] < vocab_size)) continue;
    return Error{ErrorKind::kData,
                 fmt::format("token id {} at position {} of the prompt is outside the model's vocabulary of {}", ids[i],
                             i, vocab_size),
                 std::string(where), "use the tokenizer of the model in model.path"};
  }
  return {};
}

// A row without the configured column may have the prompt under one of its usual names.
std::string usual_prompt_key(const Json& row) {
  for (const char* name : {"prompt", "question", "problem", "query", "instruction", "input"}) {
    const Json* value = json_find(row, name);
    if (value == nullptr || (!value->is_string() && !value->is_array())) continue;
    return fmt::format("the row has {}: set data.prompt_key={} if that is the prompt.", quote(name), name);
  }
  return "";
}

// verl's column of that name; it becomes part of the names of validation metrics.
Result<std::string> data_source_of(const Json& row, std::string_view where) {
  const Json* source = json_find(row, "data_source");
  if (source == nullptr || source->is_null()) return std::string("unknown");
  if (!source->is_string()) {
    return Error{ErrorKind::kData, fmt::format("'data_source' is {}, but must be a text", quote(dump_json(*source))),
                 std::string(where), "write the source's name in quotes"};
  }
  const auto name = source->get<std::string>();
  return name.empty() ? "unknown" : name;
}

}  // namespace

PromptEncoder::PromptEncoder(const Tokenizer& tokenizer, ChatTemplates templates, PromptEncoderOptions options)
    : tokenizer_(&tokenizer),
      chats_(std::move(templates), options.template_kwargs, options.system_prompt, options.tools),
      options_(std::move(options)) {}

Result<Prompt> PromptEncoder::encode(const Json& row, std::string_view where, int64_t vocab_size) const {
  if (!row.is_object())
    return Error{ErrorKind::kData, "a data row must be a JSON object", std::string(where), "write one object per line"};
  Prompt prompt;
  const Json* ids = json_find(row, "prompt_token_ids");
  const Json* text = json_find(row, options_.prompt_key);
  if (text == nullptr) text = json_find(row, "messages");
  const bool is_chat = (ids == nullptr || ids->is_null()) && text != nullptr && text->is_array();
  if (!options_.system_prompt.empty() && !is_chat) {
    return Error{ErrorKind::kData, "data.system_prompt is set, but the row's prompt is not a list of messages",
                 std::string(where),
                 "write the prompt as messages, [{\"role\": \"user\", \"content\": ...}], or remove the key"};
  }
  if (options_.only_chats && !is_chat) {
    return Error{ErrorKind::kData, "rollout.multi_turn.enable is true, but the row's prompt is not a list of messages",
                 std::string(where), "write the prompt as messages, [{\"role\": \"user\", \"content\": ...}]"};
  }
  if (ids != nullptr && !ids->is_null()) {
    prompt.token_ids = TRY(ids_of(*ids, where));
    TRY(check_ids(prompt.token_ids, vocab_size, where));
    prompt.text = tokenizer_->decode(prompt.token_ids, /*skip_special_tokens=*/false);
  } else if (text != nullptr && text->is_string()) {
    prompt.text = text->get<std::string>();
    auto encoded = tokenizer_->encode(prompt.text, /*add_special_tokens=*/true);
    if (!encoded.ok()) return Error{ErrorKind::kData, encoded.error().what, std::string(where), encoded.error().next};
    prompt.token_ids = std::move(encoded).value();
  } else if (text != nullptr && text->is_array()) {
    TRY(encode_messages(row, *text, where, prompt));
  } else {
    const std::string known[] = {options_.prompt_key, "messages", "prompt_token_ids"};
    std::string hint = usual_prompt_key(row);
    if (hint.empty()) hint = misspelt_key(row, known);
    return Error{
        ErrorKind::kData,
        fmt::format("the row has no prompt: neither '{}' (text or messages), 'messages' nor 'prompt_token_ids'",
                    options_.prompt_key),
        std::string(where),
        fmt::format("{}{}name the prompt's column with data.prompt_key", hint, hint.empty() ? "" : " Otherwise ")};
  }
  TRY(check_ids(prompt.token_ids, vocab_size, where));
  prompt.columns = columns_of(row);
  prompt.data_source = TRY(data_source_of(row, where));
  return prompt;
}

Json PromptEncoder::columns_of(const Json& row) const {
  Json columns = Json::object();
  for (const auto& [name, value] : row.items()) {
    if (!is_prompt_column(name, options_.prompt_key)) columns[name] = value;
  }
  // verl keeps the answer one level down; rewards find it under its own name too.
  const Json* reward_model = json_find(row, "reward_model");
  const Json* truth = reward_model != nullptr ? json_find(*reward_model, "ground_truth") : nullptr;
  if (truth != nullptr && !columns.contains("ground_truth")) columns["ground_truth"] = *truth;
  return columns;
}

Result<> PromptEncoder::encode_messages(const Json& row, const Json& messages, std::string_view where,
                                        Prompt& prompt) const {
  Rendered rendered = TRY(chats_.render(row, messages, /*add_generation_prompt=*/true, where));
  prompt.text = std::move(rendered.text);
  prompt.messages = dump_json(chats_.with_system_prompt(messages));
  // The template writes the special tokens itself.
  auto encoded = tokenizer_->encode(prompt.text, /*add_special_tokens=*/false);
  if (!encoded.ok()) return Error{ErrorKind::kData, encoded.error().what, std::string(where), encoded.error().next};
  prompt.token_ids = std::move(encoded).value();
  return {};
}

bool PromptEncoder::is_overlong(const Prompt& prompt) const {
  return options_.max_prompt_length > 0 && static_cast<int64_t>(prompt.token_ids.size()) > options_.max_prompt_length;
}

Result<> PromptEncoder::apply_length_policy(Prompt& prompt, std::string_view where) const {
  if (!is_overlong(prompt)) return {};
  const int64_t length = static_cast<int64_t>(prompt.token_ids.size());
  if (options_.truncation == Truncation::kError) {
    return Error{ErrorKind::kData,
                 fmt::format("the prompt has {} tokens, more than data.max_prompt_length = {}", length,
                             options_.max_prompt_length),
                 std::string(where),
                 "raise the limit, set data.truncation, or set data.filter_overlong_prompts = true"};
  }
  truncate(prompt.token_ids, options_.max_prompt_length);
  prompt.text = tokenizer_->decode(prompt.token_ids, /*skip_special_tokens=*/false);
  return {};
}

}  // namespace mortise
