// See completion_call.h. A field that would change tokens or their probabilities is obeyed or refused by name.
#include "serve/api/completion_call.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "serve/api/call_fields.h"
#include "text/guide/pattern_tree.h"
#include "text/tools/harmony.h"

namespace mortise {
namespace {

constexpr int64_t kMostSamples = 4096;  // completions per prompt
constexpr int64_t kMostPrompts = 4096;
constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr int64_t kMostTopLogProbs = 1024;
constexpr int64_t kMostStops = 64;
constexpr const char* kOnlyPatterns =
    "sampling is guided by regular expressions and lists of texts alone (structured_outputs: regex, choice)";
constexpr double kRenderShare = 0.1;  // share of a chat template's work: other clients wait

const Tokenizer* tokenizer_of(const ServedTexts& texts) { return texts.tokenizer ? &*texts.tokenizer : nullptr; }

Result<std::vector<int64_t>> encode_text(const ServedTexts& texts, const std::string& text, bool add_special_tokens,
                                         std::string_view field) {
  const Tokenizer* const tokenizer = tokenizer_of(texts);
  if (tokenizer == nullptr) return bad_field(field, "is text, but the model folder has no tokenizer", "give token ids");
  auto ids = tokenizer->encode(text, add_special_tokens);
  if (!ids.ok()) return bad_field(field, ids.error().what);
  return ids;
}

// Clients send the arguments of earlier calls as JSON text. Chat templates take objects.
void read_arguments(Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (Json& call : *calls) {
    const auto function = call.is_object() ? call.find("function") : call.end();
    if (function == call.end() || !function->is_object()) continue;
    const auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    auto parsed = parse_json(arguments->get_ref<const std::string&>(), "");
    if (parsed.ok() && parsed->is_object()) *arguments = *std::move(parsed);
  }
}

Result<Json> messages_of(const Json& list) {
  if (!list.is_array() || list.empty()) return bad_field("messages", "must be a list of messages");
  Json out = Json::array();
  for (const Json& message : list) {
    if (!message.is_object() || json_find(message, "role") == nullptr)
      return bad_field("messages", "has a message without a role", "write {\"role\": ..., \"content\": ...}");
    Json kept = Json::object();
    for (const auto& [name, value] : message.items()) {
      if (!value.is_null()) kept[name] = value;
    }
    read_arguments(kept);
    out.push_back(std::move(kept));
  }
  return out;
}

// `tools`: receives those that the prompt offers.
Result<std::vector<int64_t>> encode_chat(CallFields& fields, const ServedTexts& texts, Json* tools_out = nullptr) {
  const Json* const messages = fields.take("messages");
  if (messages == nullptr) return bad_field("messages", "is missing");
  RenderInput input;
  input.messages = TRY(messages_of(*messages));
  if (const Json* tools = fields.take("tools")) input.tools = *tools;
  if (tools_out != nullptr) *tools_out = input.tools;
  if (const Json* documents = fields.take("documents")) input.documents = *documents;
  input.add_generation_prompt = TRY(fields.boolean("add_generation_prompt", true));
  input.work_share = kRenderShare;
  TRY(fields.refuse("continue_final_message", "the chat template ends every message"));
  const ChatTemplate* const chat = texts.chat_templates.choose(!input.tools.is_null());
  if (chat == nullptr || !texts.tokenizer)
    return bad_field("messages", "needs a chat template, but the model folder has none",
                     "call /v1/completions, or start the server with model.custom_chat_template");
  input.kwargs = texts.chat_templates.special_tokens();
  if (const Json* kwargs = fields.take("chat_template_kwargs")) {
    if (!kwargs->is_object()) return bad_field("chat_template_kwargs", "must be an object");
    for (const auto& [name, value] : kwargs->items()) input.kwargs[name] = value;
  }
  const auto rendered = chat->render(input);
  if (!rendered.ok()) return bad_field("messages", "cannot be rendered: " + rendered.error().to_string());
  const bool adds = TRY(fields.boolean("add_special_tokens", false));
  return encode_text(texts, rendered->text, adds, "messages");
}

// "prompt": a text, a list of ids, or a list of either.
Result<std::vector<std::vector<int64_t>>> read_prompts(CallFields& fields, const ServedTexts& texts) {
  const bool adds = TRY(fields.boolean("add_special_tokens", true));
  const Json* const prompt = fields.take("prompt");
  if (prompt == nullptr) return bad_field("prompt", "is missing");
  std::vector<std::vector<int64_t>> out;
  const auto read = [&](const Json& one) -> Result<> {
    out.push_back(one.is_string() ? TRY(encode_text(texts, one.get<std::string>(), adds, "prompt"))
                                  : TRY(read_token_ids(one, "prompt")));
    return {};
  };
  const bool is_list = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (!is_list) {
    TRY(read(*prompt));
    return out;
  }
  if (static_cast<int64_t>(prompt->size()) > kMostPrompts)
    return bad_field("prompt", fmt::format("has more than {} prompts", kMostPrompts), "send several requests");
  for (const Json& one : *prompt) TRY(read(one));
  return out;
}

Result<> read_filters(CallFields& fields, Sampling& out) {
  out.temperature = TRY(fields.number("temperature", 1.0, 0.0, kMostTemperature));
  if (out.temperature > 0 && out.temperature < kLeastTemperature)
    return bad_field("temperature", "must be 0 or at least 1e-6");
  out.top_k = TRY(fields.integer("top_k", 0, -1, kMostTokens));
  out.top_p = TRY(fields.number("top_p", 1.0, 0.0, 1.0));
  out.min_p = TRY(fields.number("min_p", 0.0, 0.0, 1.0));
  out.typical_p = TRY(fields.number("typical_p", 1.0, 0.0, 1.0));
  out.repetition_penalty = TRY(fields.number("repetition_penalty", 1.0, kLeastPenalty, kMostPenalty));
  out.presence_penalty = TRY(fields.number("presence_penalty", 0.0, -kMostPenalty, kMostPenalty));
  out.frequency_penalty = TRY(fields.number("frequency_penalty", 0.0, -kMostPenalty, kMostPenalty));
  if (out.top_p == 0 || out.typical_p == 0) return bad_field("top_p", "and \"typical_p\" must be above 0");
  return {};
}

// The pattern that matches one of these texts.
Result<std::string> read_choices(std::string_view field, const std::vector<std::string>& texts) {
  if (texts.empty()) return bad_field(field, "must be a list of texts");
  std::string out;
  for (const std::string& text : texts) out += fmt::format("{}({})", out.empty() ? "" : "|", escaped_pattern(text));
  return out;
}

// "structured_outputs": {"regex"} or {"choice"}, or vLLM's older names of both.
Result<> read_pattern(CallFields& fields, const ServedTexts& texts, Sampling& out) {
  int num_given = 0;
  const auto read = [&](CallFields& from, std::string_view regex, std::string_view choice) -> Result<> {
    if (const auto pattern = TRY(from.text(regex))) {
      if (pattern->empty()) return bad_field(regex, "is empty", "leave it out");
      out.regex = *pattern;
      ++num_given;
    }
    if (from.take(choice) != nullptr) {
      const std::vector<std::string> options = TRY(from.texts(choice));
      out.regex = TRY(read_choices(choice, options));
      ++num_given;
    }
    return {};
  };
  TRY(read(fields, "guided_regex", "guided_choice"));
  if (const Json* given = fields.take("structured_outputs")) {
    if (!given->is_object()) return bad_field("structured_outputs", "must be an object with \"regex\" or \"choice\"");
    CallFields parts(*given);
    for (const char* name : {"json", "json_object", "grammar", "structural_tag"})
      TRY(parts.refuse(name, kOnlyPatterns));
    parts.ignore({"disable_any_whitespace", "disable_additional_properties", "whitespace_pattern", "disable_fallback"});
    TRY(read(parts, "regex", "choice"));
    TRY(parts.check_all_read());
    if (num_given == 0) return bad_field("structured_outputs", "must have \"regex\" or \"choice\"");
  }
  if (num_given > 1) return bad_field("structured_outputs", "has more than one pattern", "leave one out");
  if (num_given == 1 && !texts.tokenizer)
    return bad_field("structured_outputs", "needs a tokenizer, but the model folder has none");
  return {};
}

Result<> read_bad_words(CallFields& fields, const ServedTexts& texts, Sampling& out) {
  if (const Json* lists = fields.take("bad_word_ids")) {
    if (!lists->is_array()) return bad_field("bad_word_ids", "must be a list of lists of token ids");
    for (const Json& ids : *lists) out.bad_words.push_back(TRY(read_token_ids(ids, "bad_word_ids")));
  }
  for (const std::string& word : TRY(fields.texts("bad_words"))) {
    for (const std::string& text : {word, " " + word}) {  // most vocabularies have different tokens there
      auto ids = TRY(encode_text(texts, text, false, "bad_words"));
      if (!ids.empty() && std::ranges::count(out.bad_words, ids) == 0) out.bad_words.push_back(std::move(ids));
    }
  }
  if (static_cast<int64_t>(out.bad_words.size()) > kMostTokens) return bad_field("bad_words", "are too many");
  return {};
}

Result<> read_ends(CallFields& fields, const ServedTexts& texts, const ServedModelInfo& model, CompletionCall& call,
                   Sampling& out) {
  out.min_new_tokens = TRY(fields.integer("min_tokens", 0, 0, kMostTokens));
  out.stop_strings = TRY(fields.texts("stop"));
  if (static_cast<int64_t>(out.stop_strings.size()) > kMostStops)
    return bad_field("stop", fmt::format("has more than {} texts", kMostStops));
  if (!out.stop_strings.empty() && !texts.tokenizer)
    return bad_field("stop", "needs a tokenizer, but the model folder has none", "give stop_token_ids");
  call.own_stop_ids = TRY(fields.ids("stop_token_ids"));
  call.keeps_stop_text = TRY(fields.boolean("include_stop_str_in_output", false));
  // The model's end tokens count as ordinary ones; those of the request still end a completion.
  if (!TRY(fields.boolean("ignore_eos", false))) out.stop_ids = model.stop_ids;
  for (const int64_t id : call.own_stop_ids) {
    if (std::ranges::count(out.stop_ids, id) == 0) out.stop_ids.push_back(id);
  }
  return {};
}

// Whether the answer tells calls of tools from text.
Result<bool> read_tool_choice(CallFields& fields) {
  const Json* const choice = fields.take("tool_choice");
  if (choice != nullptr && *choice != "auto" && *choice != "none")
    return bad_field("tool_choice", "must be \"auto\" or \"none\"", kOnlyPatterns);
  return choice == nullptr || *choice == "auto";
}

// What the OpenAI API and vLLM have and this server does not.
Result<> refuse_others(CallFields& fields) {
  TRY(fields.refuse("echo", "the prompt is not repeated"));
  TRY(fields.refuse("suffix", "there is no infilling"));
  TRY(fields.refuse("logit_bias", "logits are not edited"));
  TRY(fields.refuse("prompt_logprobs", "`mortise model logprob` computes the prompt's"));
  TRY(fields.refuse("truncate_prompt_tokens", "a prompt is never cut"));
  for (const char* name : {"guided_json", "guided_grammar"}) TRY(fields.refuse(name, kOnlyPatterns));
  if (const Json* format = fields.take("response_format")) {
    const Json* const type = json_find(*format, "type");
    if (type == nullptr || *type != "text")
      return bad_field("response_format", "must be {\"type\": \"text\"}", kOnlyPatterns);
  }
  TRY(read_tool_choice(fields));
  fields.ignore({"model", "user", "request_id", "priority", "metadata", "store", "service_tier", "cache_salt",
                 "spaces_between_special_tokens", "parallel_tool_calls"});
  return {};
}

Result<> read_log_probs(CallFields& fields, CompletionCall& call) {
  if (!call.is_chat) {
    call.num_top_log_probs = TRY(fields.integer("logprobs", -1, 0, kMostTopLogProbs));
    call.gives_log_probs = call.num_top_log_probs >= 0;
    call.num_top_log_probs = std::max<int64_t>(0, call.num_top_log_probs);
    return {};
  }
  call.gives_log_probs = TRY(fields.boolean("logprobs", false));
  call.num_top_log_probs = TRY(fields.integer("top_logprobs", 0, 0, kMostTopLogProbs));
  if (call.num_top_log_probs > 0 && !call.gives_log_probs) return bad_field("top_logprobs", "needs \"logprobs\": true");
  return {};
}

Result<int64_t> read_max_tokens(CallFields& fields, bool is_chat) {
  const int64_t old_name = TRY(fields.integer("max_tokens", 0, 1, kMostTokens));
  if (!is_chat) return old_name > 0 ? old_name : 16;
  return TRY(fields.integer("max_completion_tokens", old_name, 1, kMostTokens));  // 0: as long as the model goes
}

// {"seed", "step", "first_row_id"}: the random key of a training run, so that a server samples what the trainer itself
// would.
Result<> read_row_key(CallFields& fields, ServedRequest& out) {
  out.seed = static_cast<uint64_t>(TRY(fields.integer("seed", static_cast<int64_t>(out.seed), INT64_MIN, INT64_MAX)));
  const Json* const key = fields.take("mortise");
  if (key == nullptr) return {};
  if (!key->is_object()) return bad_field("mortise", "must be an object with seed, step and first_row_id");
  CallFields parts(*key);
  const Json* const seed = parts.take("seed");
  if (seed == nullptr || !seed->is_number_integer()) return bad_field("mortise", "needs an integer \"seed\"");
  out.seed = seed->is_number_unsigned() ? seed->get<uint64_t>() : static_cast<uint64_t>(seed->get<int64_t>());
  out.step = TRY(parts.integer("step", 0, 0, INT64_MAX));
  out.first_row_id = TRY(parts.integer("first_row_id", 0, 0, INT64_MAX / 2));
  return parts.check_all_read();
}

// The number of completions cannot be more than the sink can name, nor the answer without end.
Result<> check_size(const CompletionCall& call, int64_t num_prompts) {
  if (call.num_samples * num_prompts <= kMostSamples) return {};
  return bad_field("n", fmt::format("times the prompts is more than {} completions", kMostSamples),
                   "send several requests");
}

}  // namespace

namespace {

bool has_channels(const ServedTexts& texts) {
  if (!texts.tokenizer) return false;
  return std::ranges::all_of(std::array{harmony::kChannel, harmony::kMessage}, [&](std::string_view token) {
    const std::optional<int64_t> id = texts.tokenizer->token_id(token);
    return id && texts.tokenizer->is_special(*id);
  });
}

}  // namespace

Result<CompletionCall> read_completion_call(const Json& body, bool is_chat, const ServedTexts& texts,
                                            const ServedModelInfo& model, uint64_t fallback_seed) {
  if (!body.is_object()) return Error{ErrorKind::kData, "the body must be a JSON object", "", ""};
  CallFields fields(body);
  CompletionCall call;
  call.is_chat = is_chat;
  call.num_samples = TRY(fields.integer("n", 1, 1, kMostSamples));
  if (TRY(fields.integer("best_of", call.num_samples, 1, kMostSamples)) != call.num_samples)
    return bad_field("best_of", "must equal \"n\"", "leave it out");
  std::vector<std::vector<int64_t>> prompts;
  if (is_chat)
    prompts.push_back(TRY(encode_chat(fields, texts, &call.tools)));
  else
    prompts = TRY(read_prompts(fields, texts));
  TRY(check_size(call, static_cast<int64_t>(prompts.size())));
  ServedRequest request;
  request.num_samples = call.num_samples;
  request.seed = fallback_seed;
  TRY(read_filters(fields, request.sampling));
  TRY(read_ends(fields, texts, model, call, request.sampling));
  TRY(read_bad_words(fields, texts, request.sampling));
  TRY(read_pattern(fields, texts, request.sampling));
  TRY(read_log_probs(fields, call));
  TRY(read_row_key(fields, request));
  request.num_top_log_probs = call.num_top_log_probs;
  const int64_t max_tokens = TRY(read_max_tokens(fields, is_chat));
  call.returns_ids = TRY(fields.boolean("return_token_ids", false));
  call.tokens_as_ids = TRY(fields.boolean("return_tokens_as_token_ids", false));
  call.streams = TRY(fields.boolean("stream", false));
  if (const Json* options = fields.take("stream_options")) {
    const Json* const usage = json_find(*options, "include_usage");
    call.streams_usage = usage != nullptr && *usage == true;
  }
  call.skips_special_tokens = TRY(fields.boolean("skip_special_tokens", true));
  call.splits_channels = is_chat && call.skips_special_tokens && has_channels(texts);
  const bool may_call = call.tools.is_array() && !call.tools.empty() && TRY(read_tool_choice(fields));
  if (may_call && texts.tokenizer) call.tool_format = texts.tool_format;
  TRY(refuse_others(fields));
  TRY(fields.check_all_read());
  for (size_t i = 0; i < prompts.size(); ++i) {
    ServedRequest& one = call.requests.emplace_back(request);
    one.prompt_ids = std::move(prompts[i]);
    one.first_row_id += static_cast<int64_t>(i) * call.num_samples;
    const int64_t room = model.max_length - static_cast<int64_t>(one.prompt_ids.size());
    one.sampling.max_new_tokens = max_tokens > 0 ? max_tokens : std::max<int64_t>(1, room);
    if (one.sampling.min_new_tokens > one.sampling.max_new_tokens) {
      return bad_field("min_tokens", fmt::format("is {}, but only {} tokens may be sampled",
                                                 one.sampling.min_new_tokens, one.sampling.max_new_tokens));
    }
  }
  return call;
}

Result<std::vector<int64_t>> read_tokenize_call(const Json& body, const ServedTexts& texts) {
  if (!body.is_object()) return Error{ErrorKind::kData, "the body must be a JSON object", "", ""};
  CallFields fields(body);
  fields.ignore({"model", "return_token_strs"});
  std::vector<int64_t> ids;
  if (json_find(body, "messages") != nullptr) {
    ids = TRY(encode_chat(fields, texts));
  } else {
    const auto prompt = TRY(fields.text("prompt"));
    if (!prompt) return bad_field("prompt", "is missing");
    const bool adds = TRY(fields.boolean("add_special_tokens", true));
    ids = TRY(encode_text(texts, *prompt, adds, "prompt"));
  }
  TRY(fields.check_all_read());
  return ids;
}

Result<std::vector<int64_t>> read_detokenize_call(const Json& body, const ServedModelInfo& model) {
  if (!body.is_object()) return Error{ErrorKind::kData, "the body must be a JSON object", "", ""};
  CallFields fields(body);
  fields.ignore({"model"});
  auto ids = TRY(fields.ids("tokens"));
  TRY(fields.check_all_read());
  for (const int64_t id : ids) {
    if (id < 0 || id >= model.vocab_size)
      return bad_field("tokens", fmt::format("has {}, outside the vocabulary of {}", id, model.vocab_size));
  }
  return ids;
}

}  // namespace mortise
