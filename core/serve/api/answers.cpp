// See answers.h. Log-probs are written as doubles in the shortest form, so that a reader gets the same float back.
#include "serve/api/answers.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "serve/api/tool_answers.h"
#include "text/tools/harmony.h"

namespace mortise {
namespace {

std::string token_text(const CompletionCall& call, const ServedTexts& texts, int64_t id) {
  if (!texts.tokenizer || call.tokens_as_ids) return fmt::format("token_id:{}", id);
  const int64_t one[] = {id};
  return texts.tokenizer->decode(one);
}

bool ended_by_id(const ServedRequest& request, const ServedSequence& sequence) {
  return sequence.finish_reason == FinishReason::kStop && !sequence.ids.empty() &&
         std::ranges::count(request.sampling.stop_ids, sequence.ids.back()) > 0;
}

// Where the first stop text begins, and which it is.
struct StopPlace {
  size_t begin;
  const std::string* text;
};
std::optional<StopPlace> find_stop(const ServedRequest& request, const std::string& text) {
  std::optional<StopPlace> found;
  for (const std::string& stop : request.sampling.stop_strings) {
    const size_t at = text.find(stop);
    if (at != std::string::npos && (!found || at < found->begin)) found = StopPlace{at, &stop};
  }
  return found;
}

std::string decode(const CompletionCall& call, const ServedTexts& texts, std::span<const int64_t> ids) {
  return texts.tokenizer ? texts.tokenizer->decode(ids, call.skips_special_tokens) : std::string();
}

std::string text_before_stop(const CompletionCall& call, const ServedRequest& request, const ServedSequence& sequence,
                             const auto& decoded) {
  std::span<const int64_t> ids = sequence.ids;
  const bool by_id = ended_by_id(request, sequence);
  if (by_id && !call.keeps_stop_text) ids = ids.first(ids.size() - 1);
  std::string text = decoded(ids);
  if (by_id || sequence.finish_reason != FinishReason::kStop) return text;
  if (const auto stop = find_stop(request, text))
    text.resize(stop->begin + (call.keeps_stop_text ? stop->text->size() : 0));
  return text;
}

// vLLM's: null for the model's end token, else the id or text that ended it.
Json stop_reason(const CompletionCall& call, const ServedRequest& request, const ServedTexts& texts,
                 const ServedSequence& sequence) {
  if (sequence.finish_reason != FinishReason::kStop) return {};
  if (ended_by_id(request, sequence)) {
    const int64_t id = sequence.ids.back();
    return std::ranges::count(call.own_stop_ids, id) > 0 ? Json(id) : Json();
  }
  const std::string text = decode(call, texts, sequence.ids);
  const auto stop = find_stop(request, text);
  return stop ? Json(*stop->text) : Json();
}

Json top_of(const CompletionCall& call, const ServedTexts& texts, const ServedSequence& sequence, size_t token,
            size_t num_top) {
  Json out = Json::object();
  out[token_text(call, texts, sequence.ids[token])] = sequence.log_prob[token];
  for (size_t k = 0; k < num_top && token * num_top + k < sequence.top.size(); ++k) {
    const auto& [id, log_prob] = sequence.top[token * num_top + k];
    out[token_text(call, texts, id)] = log_prob;
  }
  return out;
}

Json completion_log_probs(const CompletionCall& call, const ServedTexts& texts, const ServedSequence& sequence,
                          size_t first) {
  Json tokens = Json::array(), log_probs = Json::array(), top = Json::array(), offsets = Json::array();
  size_t offset = 0;
  for (size_t t = first; t < sequence.ids.size(); ++t) {
    std::string text = token_text(call, texts, sequence.ids[t]);
    log_probs.push_back(sequence.log_prob[t]);
    top.push_back(top_of(call, texts, sequence, t, static_cast<size_t>(call.num_top_log_probs)));
    offsets.push_back(offset);
    offset += text.size();
    tokens.push_back(std::move(text));
  }
  Json out = {{"tokens", std::move(tokens)}, {"token_logprobs", std::move(log_probs)}};
  if (!sequence.filtered_log_prob.empty()) {
    Json filtered = Json::array();
    for (size_t t = first; t < sequence.ids.size(); ++t) filtered.push_back(sequence.filtered_log_prob[t]);
    out["filtered_token_logprobs"] = std::move(filtered);
  }
  out["top_logprobs"] = std::move(top);
  out["text_offset"] = std::move(offsets);
  return out;
}

Json chat_token(const CompletionCall& call, const ServedTexts& texts, int64_t id, float log_prob) {
  const std::string text = token_text(call, texts, id);
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", log_prob}, {"bytes", std::move(bytes)}};
}

Json chat_log_probs(const CompletionCall& call, const ServedTexts& texts, const ServedSequence& sequence,
                    size_t first) {
  Json content = Json::array();
  const auto num_top = static_cast<size_t>(call.num_top_log_probs);
  for (size_t t = first; t < sequence.ids.size(); ++t) {
    Json token = chat_token(call, texts, sequence.ids[t], sequence.log_prob[t]);
    token["top_logprobs"] = Json::array();
    for (size_t k = 0; k < num_top && t * num_top + k < sequence.top.size(); ++k) {
      const auto& [id, log_prob] = sequence.top[t * num_top + k];
      token["top_logprobs"].push_back(chat_token(call, texts, id, log_prob));
    }
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

Json ids_from(const ServedSequence& sequence, size_t first) {
  Json out = Json::array();
  for (size_t t = first; t < sequence.ids.size(); ++t) out.push_back(sequence.ids[t]);
  return out;
}

// What a choice has in addition to its text.
void add_rest(const CompletionCall& call, const ServedTexts& texts, size_t request, const ServedSequence& sequence,
              size_t first, bool is_last, Json& choice) {
  choice["logprobs"] = nullptr;
  if (call.gives_log_probs) {
    choice["logprobs"] = call.is_chat ? chat_log_probs(call, texts, sequence, first)
                                      : completion_log_probs(call, texts, sequence, first);
  }
  choice["finish_reason"] = is_last ? Json(finish_reason_name(sequence.finish_reason)) : Json();
  choice["stop_reason"] = is_last ? stop_reason(call, call.requests[request], texts, sequence) : Json();
  if (call.returns_ids) choice["token_ids"] = ids_from(sequence, first);
  if (is_last) choice["weight_version"] = sequence.weight_version >= 0 ? Json(sequence.weight_version) : Json();
}

// A completion that was cut stays one.
void tell_calls(Json& choice) {
  if (choice["finish_reason"] == finish_reason_name(FinishReason::kStop)) choice["finish_reason"] = "tool_calls";
}

Json index_of(const CompletionCall& call, size_t request, const ServedSequence& sequence) {
  return static_cast<int64_t>(request) * call.num_samples + sequence.sample_index;
}

std::string error_json(int status, const std::string& message, const char* type) {
  return dump_json({{"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", status}}}});
}

Json head_of(const AnswerHead& head, const ServedTexts& texts, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created_s}, {"model", texts.model_name}};
}

}  // namespace

std::string visible_text(const CompletionCall& call, const ServedRequest& request, const ServedTexts& texts,
                         const ServedSequence& sequence) {
  return text_before_stop(call, request, sequence,
                          [&](std::span<const int64_t> ids) { return decode(call, texts, ids); });
}

std::string channel_text(const CompletionCall& call, const ServedRequest& request, const ServedTexts& texts,
                         const ServedSequence& sequence) {
  return text_before_stop(call, request, sequence,
                          [&](std::span<const int64_t> ids) { return texts.tokenizer->decode(ids); });
}

FinishedText finished_text(const CompletionCall& call, const ServedTexts& texts, size_t request,
                           const ServedSequence& sequence) {
  FinishedText out;
  const ServedRequest& asked = call.requests[request];
  out.tool_calls = tool_calls_of(call, texts, request, sequence);
  if (call.splits_channels) {
    HarmonyText channels(/*keeps_calls=*/!call.tool_format);
    channels.push(channel_text(call, asked, texts, sequence));
    channels.finish();
    if (out.tool_calls.empty() && !channels.calls.empty())  // calls that cannot be read
      channels.answer += (channels.answer.empty() ? "" : "\n") + channels.calls;
    out.answer = std::move(channels.answer);
    out.reasoning = std::move(channels.reasoning);
  } else if (out.tool_calls.empty()) {
    out.answer = visible_text(call, asked, texts, sequence);
  } else {
    CallText text(*texts.tokenizer, *call.tool_format, call.skips_special_tokens);
    for (const int64_t id : sequence.ids) text.push(id);
    out.answer = text.before_calls();
  }
  return out;
}

Json finished_choice(const CompletionCall& call, const ServedTexts& texts, size_t request,
                     const ServedSequence& sequence) {
  Json choice = {{"index", index_of(call, request, sequence)}};
  FinishedText text = finished_text(call, texts, request, sequence);
  const bool has_calls = !text.tool_calls.empty();
  if (call.is_chat)
    choice["message"] = {{"role", "assistant"},
                         {"content", has_calls && text.answer.empty() ? Json() : Json(std::move(text.answer))},
                         {"refusal", nullptr},
                         {"tool_calls", std::move(text.tool_calls)}};
  else
    choice["text"] = std::move(text.answer);
  if (call.splits_channels) choice["message"]["reasoning"] = std::move(text.reasoning);
  add_rest(call, texts, request, sequence, 0, true, choice);
  if (has_calls) tell_calls(choice);
  if (call.returns_ids && !call.is_chat) choice["prompt_token_ids"] = call.requests[request].prompt_ids;
  return choice;
}

Json streamed_choice(const CompletionCall& call, const ServedTexts& texts, size_t request,
                     const ServedSequence& sequence, size_t first_token, const NewText& news, bool is_last) {
  Json choice = {{"index", index_of(call, request, sequence)}};
  if (call.is_chat)
    choice["delta"] = {{"role", "assistant"}, {"content", news.text}};
  else
    choice["text"] = news.text;
  const bool has_calls = !news.tool_calls.empty();
  if (has_calls) {
    choice["delta"]["tool_calls"] = news.tool_calls;
    for (size_t i = 0; i < news.tool_calls.size(); ++i) choice["delta"]["tool_calls"][i]["index"] = i;
  }
  if (call.splits_channels) choice["delta"]["reasoning"] = news.reasoning;
  add_rest(call, texts, request, sequence, first_token, is_last, choice);
  if (has_calls) tell_calls(choice);
  return choice;
}

Json usage_of(const CompletionCall& call, int64_t num_completion_tokens) {
  int64_t prompt = 0;
  for (const ServedRequest& request : call.requests) prompt += static_cast<int64_t>(request.prompt_ids.size());
  return {{"prompt_tokens", prompt},
          {"completion_tokens", num_completion_tokens},
          {"total_tokens", prompt + num_completion_tokens}};
}

Json answer_of(const AnswerHead& head, const CompletionCall& call, const ServedTexts& texts, Json choices,
               int64_t num_completion_tokens) {
  Json out = head_of(head, texts, call.is_chat ? "chat.completion" : "text_completion");
  out["choices"] = std::move(choices);
  if (call.is_chat && call.returns_ids) out["prompt_token_ids"] = call.requests.front().prompt_ids;
  out["usage"] = usage_of(call, num_completion_tokens);
  return out;
}

Json chunk_of(const AnswerHead& head, const CompletionCall& call, const ServedTexts& texts, Json choices) {
  Json out = head_of(head, texts, call.is_chat ? "chat.completion.chunk" : "text_completion");
  out["choices"] = std::move(choices);
  return out;
}

std::string error_body(int status, const std::string& message) {
  const char* type = status < 500 ? "BadRequestError" : "InternalServerError";
  if (status == 401) type = "AuthenticationError";
  if (status == 404) type = "NotFoundError";
  return error_json(status, message, type);
}

std::string error_body(const Error& error) {
  const int status = status_of(error);
  if (error.kind == ErrorKind::kNumerics) return error_json(status, error.to_string(), "NumericsError");
  return error_body(status, error.to_string());
}

int status_of(const Error& error) {
  switch (error.kind) {
    case ErrorKind::kData:
    case ErrorKind::kConfig:
      return 400;
    case ErrorKind::kSignal:
      return 503;
    default:
      return 500;
  }
}

Json models_answer(const ServedTexts& texts, const ServedModelInfo& model, const ServeStats& stats, int64_t created_s) {
  Json card = {{"id", texts.model_name}, {"object", "model"},        {"created", created_s},
               {"owned_by", "mortise"},  {"root", texts.model_name}, {"parent", nullptr}};
  card["max_model_len"] = model.max_length > 0 ? Json(model.max_length) : Json();
  card["weight_version"] = stats.version >= 0 ? Json(stats.version) : Json();
  return {{"object", "list"}, {"data", Json::array({std::move(card)})}};
}

std::string metrics_text(const ServeStats& stats) {
  std::string out;
  const auto add = [&](const char* name, const char* type, const char* help, double value) {
    out += fmt::format("# HELP mortise_{0} {1}\n# TYPE mortise_{0} {2}\nmortise_{0} {3}\n", name, help, type, value);
  };
  add("samples_running", "gauge", "Completions that run or wait.", static_cast<double>(stats.num_running));
  add("tokens_generated_total", "counter", "Tokens of finished completions.", static_cast<double>(stats.num_tokens));
  add("samples_finished_total", "counter", "Finished completions.", static_cast<double>(stats.num_finished));
  add("requests_failed_total", "counter", "Requests that the model could not answer.",
      static_cast<double>(stats.num_failed));
  add("weight_updates_total", "counter", "Loads of new weights.", static_cast<double>(stats.num_updates));
  add("weight_version", "gauge", "Version of the weights; -1: not known.", static_cast<double>(stats.version));
  add("paused", "gauge", "1 while sampling is paused.", stats.is_paused ? 1 : 0);
  return out;
}

}  // namespace mortise
