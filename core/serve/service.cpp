// See service.h.
#include "serve/service.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "foundation/base/text.h"
#include "serve/api/answers.h"
#include "serve/api/call_fields.h"
#include "serve/api/tool_answers.h"
#include "serve/http/query.h"
#include "text/tools/harmony.h"

namespace mortise {
namespace {

constexpr size_t kMaxJsonValues = 4'000'000;  // values in a body: prompts of so many ids
constexpr int kMaxJsonDepth = 32;

void send_error(HttpReply& reply, int status, const std::string& message) {
  reply.send(status, error_body(status, message));
}
void send_error(HttpReply& reply, const Error& error) { reply.send(status_of(error), error_body(error)); }

// What a client asked for and how it is answered.
struct Answering {
  AnswerHead head;
  CompletionCall call;
  std::shared_ptr<const ServedTexts> texts;
  std::shared_ptr<HttpReply> reply;
};

// Answers once, when all completions are there.
class WholeAnswer final : public ServedSink {
 public:
  explicit WholeAnswer(Answering answering) : a_(std::move(answering)) {
    choices_.resize(a_.call.requests.size() * static_cast<size_t>(a_.call.num_samples));
  }
  void progress(size_t, const ServedSequence&) override {}
  void finished(size_t request, const ServedSequence& sequence) override {
    num_tokens_ += static_cast<int64_t>(sequence.ids.size());
    Json choice = finished_choice(a_.call, *a_.texts, request, sequence);
    const auto place = choice["index"].get<size_t>();
    choices_[place] = std::move(choice);
    if (++num_finished_ < choices_.size()) return;
    Json all = Json::array();
    for (Json& one : choices_) all.push_back(std::move(one));
    a_.reply->send(200, dump_json(answer_of(a_.head, a_.call, *a_.texts, std::move(all), num_tokens_)));
  }
  void failed(const Error& error) override { send_error(*a_.reply, error); }
  [[nodiscard]] bool wants_progress() const override { return false; }

 private:
  Answering a_;
  std::vector<Json> choices_;
  size_t num_finished_ = 0;
  int64_t num_tokens_ = 0;
};

// Server-sent events: text as it grows. What may be the beginning of a stop text is held back.
class StreamedAnswer final : public ServedSink {
 public:
  explicit StreamedAnswer(Answering answering) : a_(std::move(answering)) {
    for (const std::string& stop : a_.call.requests.front().sampling.stop_strings)
      held_bytes_ = std::max(held_bytes_, stop.size() - 1);
    num_left_ = a_.call.requests.size() * static_cast<size_t>(a_.call.num_samples);
  }
  void progress(size_t request, const ServedSequence& sequence) override {
    Choice& choice = choice_of(request, sequence);
    if (choice.decoder) {
      for (; choice.num_decoded < sequence.ids.size(); ++choice.num_decoded)
        take(choice, sequence.ids[choice.num_decoded]);
    }
    const HarmonyText& text = choice.text;
    const size_t end = shown_end(text.answer, choice.sent, held_bytes_);
    const size_t reasoning_end =
        shown_end(text.reasoning, choice.sent_reasoning, text.is_in_reasoning() ? held_bytes_ : 0);
    const bool has_text = end > choice.sent || reasoning_end > choice.sent_reasoning;
    if (!has_text && !(a_.call.returns_ids && sequence.ids.size() > choice.num_sent)) return;
    send(request, sequence, choice, end, reasoning_end, false);
  }
  void finished(size_t request, const ServedSequence& sequence) override {
    num_tokens_ += static_cast<int64_t>(sequence.ids.size());
    Choice& choice = choice_of(request, sequence);
    FinishedText whole = finished_text(a_.call, *a_.texts, request, sequence);
    choice.text.answer = std::move(whole.answer);
    choice.text.reasoning = std::move(whole.reasoning);
    send(request, sequence, choice, choice.text.answer.size(), choice.text.reasoning.size(), true,
         std::move(whole.tool_calls));
    if (--num_left_ > 0) return;
    if (a_.call.streams_usage) {
      Json last = chunk_of(a_.head, a_.call, *a_.texts, Json::array());
      last["usage"] = usage_of(a_.call, num_tokens_);
      event(dump_json(last));
    }
    event("[DONE]");
    a_.reply->end_stream();
  }
  void failed(const Error& error) override {
    if (!has_started_) return send_error(*a_.reply, error);
    event(error_body(error));
    a_.reply->end_stream();
  }
  [[nodiscard]] bool wants_progress() const override { return true; }

 private:
  struct Choice {
    std::optional<IncrementalDecoder> decoder;
    std::optional<CallText> calls;  // with CompletionCall::tool_format, without channels
    HarmonyText text;               // without CompletionCall::splits_channels all of it is the answer
    size_t sent = 0;                // bytes of the answer
    size_t sent_reasoning = 0;      // bytes
    size_t num_decoded = 0;         // tokens
    size_t num_sent = 0;            // tokens
  };

  Choice& choice_of(size_t request, const ServedSequence& sequence) {
    const auto [entry, is_new] = choices_.try_emplace({request, sequence.sample_index});
    if (!is_new || !a_.texts->tokenizer) return entry->second;
    Choice& choice = entry->second;
    choice.decoder = a_.texts->tokenizer->incremental_decoder(a_.call.skips_special_tokens && !a_.call.splits_channels);
    if (!a_.call.tool_format) return choice;
    if (a_.call.splits_channels)
      choice.text = HarmonyText(/*keeps_calls=*/false);
    else
      choice.calls.emplace(*a_.texts->tokenizer, *a_.call.tool_format, a_.call.skips_special_tokens);
    return choice;
  }
  void take(Choice& choice, int64_t id) const {
    if (choice.calls) {
      choice.calls->push(id);
      choice.text.answer = choice.calls->shown();
      return;
    }
    const std::string piece = choice.decoder->push(id);
    if (a_.call.splits_channels)
      choice.text.push(piece);
    else
      choice.text.answer += piece;
  }
  static size_t shown_end(const std::string& text, size_t sent, size_t held) {
    size_t end = text.size() > held ? text.size() - held : 0;
    while (end > sent && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
      --end;  // never half a character
    return std::max(end, sent);
  }
  // The part of `text` before `end` that was not sent before.
  static std::string unsent(const std::string& text, size_t end, size_t& sent) {
    if (end <= sent) return {};
    const size_t begin = std::exchange(sent, end);
    return text.substr(begin, end - begin);
  }
  // The client gets the answer up to `end`, and the reasoning up to `reasoning_end`.
  void send(size_t request, const ServedSequence& sequence, Choice& choice, size_t end, size_t reasoning_end,
            bool is_last, Json tool_calls = Json::array()) {
    Json choices = Json::array();
    const NewText news{unsent(choice.text.answer, end, choice.sent),
                       unsent(choice.text.reasoning, reasoning_end, choice.sent_reasoning), std::move(tool_calls)};
    choices.push_back(streamed_choice(a_.call, *a_.texts, request, sequence, choice.num_sent, news, is_last));
    choice.num_sent = sequence.ids.size();
    event(dump_json(chunk_of(a_.head, a_.call, *a_.texts, std::move(choices))));
  }
  void event(const std::string& data) {
    if (!has_started_) a_.reply->start_stream("text/event-stream; charset=utf-8");
    has_started_ = true;
    a_.reply->write(fmt::format("data: {}\n\n", data));
  }

  Answering a_;
  std::map<std::pair<size_t, int64_t>, Choice> choices_;
  size_t held_bytes_ = 0;
  size_t num_left_ = 0;
  int64_t num_tokens_ = 0;
  bool has_started_ = false;
};

// Answers a control call.
ServeLoop::Done answer_control(std::shared_ptr<HttpReply> reply, Json good) {
  return [reply = std::move(reply), good = std::move(good)](const Result<>& done) {
    if (done.ok()) return reply->send(200, dump_json(good));
    const bool is_conflict = done.error().kind == ErrorKind::kConfig;
    send_error(*reply, is_conflict ? 409 : 500, done.error().to_string());
  };
}

}  // namespace

ServeService::ServeService(ServeLoop& loop, ServedTexts texts, ServiceOptions options, Env& env)
    : loop_(&loop),
      texts_(std::make_shared<const ServedTexts>(std::move(texts))),
      options_(std::move(options)),
      weight_calls_(loop, options_.receiver),
      env_(&env),
      started_s_(env.wall_time_ns() / 1'000'000'000) {}

uint64_t ServeService::fresh_number() {
  uint64_t number = 0;
  env_->random_bytes(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

bool ServeService::has_key(const std::string& authorization) const {
  return options_.api_key.empty() || is_bearer(authorization, options_.api_key);
}

bool ServeService::knows_model(const Json& body) const {
  const Json* const model = json_find(body, "model");
  return model == nullptr || model->is_null() || *model == texts_->model_name;
}

std::optional<HttpRefusal> ServeService::gate(const HttpRequest& head) const {
  if (head.path == "/health") return std::nullopt;
  if (head.from_browser) return HttpRefusal{403, "requests from web pages are refused (Origin header)"};
  if (has_key(head.authorization)) return std::nullopt;
  return HttpRefusal{401, "the API key is missing or wrong; send 'Authorization: Bearer KEY'"};
}

void ServeService::handle(HttpRequest request, const Reply& reply) {
  if (request.path == "/health" && request.method == "GET") return reply->send(200, "", "text/plain");
  if (const auto refusal = gate(request)) return send_error(*reply, refusal->status, refusal->message);
  if (request.method == "GET") return get(request.path, reply);
  if (request.method == "POST") return post(request, reply);
  send_error(*reply, 405, "the method must be GET or POST");
}

void ServeService::get(const std::string& path, const Reply& reply) {
  if (path == "/v1/models")
    return reply->send(200, dump_json(models_answer(*texts_, loop_->info(), loop_->stats(), started_s_)));
  if (path == "/metrics") return reply->send(200, metrics_text(loop_->stats()), "text/plain; version=0.0.4");
  if (path == "/version") return reply->send(200, dump_json({{"version", "mortise-" + options_.version}}));
  if (path == "/is_paused") return reply->send(200, dump_json({{"is_paused", loop_->stats().is_paused}}));
  if (path == "/get_world_size") return reply->send(200, dump_json({{"world_size", 1}}));
  send_error(*reply, 404, fmt::format("there is no GET {}; docs/servers.md lists the endpoints", quote(path)));
}

void ServeService::post(const HttpRequest& request, const Reply& reply) {
  const std::string& path = request.path;
  if (path == "/pause") return pause(request.query, reply);
  if (path == "/resume") return loop_->resume(answer_control(reply, {{"status", "resumed"}}));
  if (path == "/reset_prefix_cache" || path == "/sleep")
    return loop_->free_caches(answer_control(reply, {{"success", true}}));
  if (path == "/wake_up") return reply->send(200, dump_json({{"success", true}}));
  if (path == "/abort_requests") {
    loop_->abort_all();
    return reply->send(200, dump_json({{"success", true}}));
  }
  JsonOptions options;
  options.limits.max_values = kMaxJsonValues;
  options.limits.max_depth = kMaxJsonDepth;
  const auto body = parse_json(request.body, "the body", options);
  if (!body.ok()) return send_error(*reply, 400, body.error().to_string());
  if (!body->is_object()) return send_error(*reply, 400, "the body must be a JSON object");
  if (path == "/collective_rpc") return collective_rpc(*body, reply);
  if (path == "/update_weight_version") return update_version(*body, reply);
  if (WeightCalls::has(path)) return weight_calls_.handle(path, *body, reply);
  if (!knows_model(*body)) {
    return send_error(*reply, 404,
                      fmt::format("the model {} is not here; this server has {}", dump_json((*body)["model"]),
                                  quote(texts_->model_name)));
  }
  if (path == "/v1/completions") return complete(*body, false, reply);
  if (path == "/v1/chat/completions") return complete(*body, true, reply);
  if (path == "/tokenize") return tokenize(*body, false, reply);
  if (path == "/detokenize") return tokenize(*body, true, reply);
  send_error(*reply, 404, fmt::format("there is no POST {}; docs/servers.md lists the endpoints", quote(path)));
}

void ServeService::complete(const Json& body, bool is_chat, const Reply& reply) {
  auto call = read_completion_call(body, is_chat, *texts_, loop_->info(), fresh_number() >> 1);
  if (!call.ok()) return send_error(*reply, call.error());
  const AnswerHead head{fmt::format("{}-{:016x}", is_chat ? "chatcmpl" : "cmpl", fresh_number()),
                        env_->wall_time_ns() / 1'000'000'000};
  call->call_id = fmt::format("{:016x}", fresh_number());
  const bool streams = call->streams;
  std::vector<ServedRequest> requests = call->requests;
  Answering answering{head, *std::move(call), texts_, reply};
  std::shared_ptr<ServedSink> sink;
  if (streams)
    sink = std::make_shared<StreamedAnswer>(std::move(answering));
  else
    sink = std::make_shared<WholeAnswer>(std::move(answering));
  const int64_t job = loop_->submit(std::move(requests), std::move(sink));
  reply->on_close([loop = loop_, job] { loop->abort(job); });
}

void ServeService::tokenize(const Json& body, bool backwards, const Reply& reply) {
  if (backwards) {
    const auto ids = read_detokenize_call(body, loop_->info());
    if (!ids.ok()) return send_error(*reply, ids.error());
    if (!texts_->tokenizer) return send_error(*reply, 400, "the model folder has no tokenizer");
    return reply->send(200, dump_json({{"prompt", texts_->tokenizer->decode(*ids)}}));
  }
  const auto ids = read_tokenize_call(body, *texts_);
  if (!ids.ok()) return send_error(*reply, ids.error());
  reply->send(200, dump_json({{"count", ids->size()},
                              {"max_model_len", loop_->info().max_length},
                              {"tokens", *ids},
                              {"token_strs", nullptr}}));
}

void ServeService::pause(const std::string& query, const Reply& reply) {
  const std::string mode = query_value(query, "mode").value_or("abort");  // as vLLM's default
  const std::map<std::string, PauseMode> modes = {
      {"wait", PauseMode::kWait}, {"abort", PauseMode::kAbort}, {"keep", PauseMode::kKeep}};
  const auto found = modes.find(mode);
  if (found == modes.end()) return send_error(*reply, 400, "mode must be wait, abort or keep, not " + quote(mode));
  loop_->pause(found->second, answer_control(reply, {{"status", "paused"}}));
}

void ServeService::collective_rpc(const Json& body, const Reply& reply) {
  CallFields fields(body);
  const auto method = fields.text("method");
  if (!method.ok()) return send_error(*reply, method.error());
  if (method->value_or("") != "reload_weights") return send_error(*reply, 400, "the only method is \"reload_weights\"");
  const Json* const arguments = fields.take("kwargs");
  fields.ignore({"timeout", "args"});
  const Json* const folder = arguments == nullptr ? nullptr : json_find(*arguments, "weights_path");
  if (folder == nullptr || !folder->is_string())
    return send_error(*reply, 400, "kwargs needs \"weights_path\", a folder of *.safetensors on this machine");
  if (const auto all = fields.check_all_read(); !all.ok()) return send_error(*reply, all.error());
  loop_->load_weights(folder->get<std::string>(), answer_control(reply, {{"results", Json::array({nullptr})}}));
}

void ServeService::update_version(const Json& body, const Reply& reply) {
  const Json* const version = json_find(body, "new_version");
  std::optional<int64_t> number;
  if (version != nullptr && version->is_string()) number = parse_i64(version->get<std::string>());
  if (version != nullptr && version->is_number_integer()) number = version->get<int64_t>();
  if (!number || *number < 0) return send_error(*reply, 400, "\"new_version\" must be a number of at least 0");
  loop_->set_version(*number, answer_control(reply, {{"success", true}, {"new_version", std::to_string(*number)}}));
}

}  // namespace mortise
