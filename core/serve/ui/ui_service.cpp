// See ui_service.h.
#include "serve/ui/ui_service.h"

#include <fmt/core.h>

#include <utility>

#include "foundation/base/text.h"
#include "serve/api/answers.h"
#include "serve/http/query.h"

namespace mortise {
namespace {

constexpr int kMaxUiJsonDepth = 64;
constexpr const char* kHtml = "text/html; charset=utf-8";

void tell(HttpReply& reply, int status, const std::string& message) { reply.send(status, error_body(status, message)); }
void tell(HttpReply& reply, const Error& error) { reply.send(status_of(error), error_body(error)); }

std::optional<int64_t> query_number(const HttpRequest& request, std::string_view name) {
  const auto text = query_value(request.query, name);
  return text ? parse_i64(*text) : std::nullopt;
}

}  // namespace

UiService::UiService(UiPort& port, UiAccess access)
    : port_(&port),
      access_(std::move(access)),
      models_([port = port_](const std::string& name) { return port->load_model(name); },
              [port = port_](const std::string& name) { return port->version_of(name); }, kMostModels) {
  hub_.start();
}

std::optional<HttpRefusal> UiService::gate(const HttpRequest& head) const {
  if (head.path == "/health" && head.method == "GET") return std::nullopt;
  return refuse_request(head, access_);
}

void UiService::handle(HttpRequest request, const Reply& reply) {
  if (const auto refusal = gate(request)) return tell(*reply, refusal->status, refusal->message);
  if (request.method == "GET") return get(request, reply);
  if (request.method == "POST") return post(std::move(request), reply);
  tell(*reply, 405, "the method must be GET or POST");
}

void UiService::post_to(WorkThread& thread, const Reply& reply, std::function<void()> work) {
  const bool is_taken =
      thread.post(std::move(work), [reply](const std::string& what) { tell(*reply, 500, "internal error: " + what); });
  if (!is_taken) tell(*reply, 503, kTooManyWait);
}

void UiService::page(Result<std::string> (UiPort::*make)(), const Reply& reply) {
  post_to(files_, reply, [this, make, reply] {
    auto html = (port_->*make)();
    return html.ok() ? reply->send(200, *std::move(html), kHtml) : tell(*reply, html.error());
  });
}

void UiService::list_models(const Reply& reply) {
  post_to(files_, reply, [this, reply] {
    auto models = port_->models();
    if (!models.ok()) return tell(*reply, models.error());
    (*models)["loaded"] = models_.loaded();
    reply->send(200, dump_json(*models));
  });
}

void UiService::get(const HttpRequest& request, const Reply& reply) {
  if (request.path == "/health") return reply->send(200, "", "text/plain");
  if (request.path == "/") return page(&UiPort::report_page, reply);
  if (request.path == "/playground") return page(&UiPort::playground_page, reply);
  if (request.path == "/v1/models") return list_models(reply);
  if (request.path == "/events") {
    // A browser that connects again tells the last event that it got; the page's own place is older.
    const std::string place =
        request.last_event_id.empty() ? query_value(request.query, "since").value_or("") : request.last_event_id;
    return hub_.add(port_->open_events(place), reply);
  }
  if (request.path == "/ui/rows") {
    const auto run = query_number(request, "run"), step = query_number(request, "step");
    if (!run || !step) return tell(*reply, 400, "the query needs run and step, both numbers");
    return post_to(files_, reply, [this, reply, run = *run, step = *step] {
      auto rows = port_->rows(run, step);
      return rows.ok() ? reply->send(200, *std::move(rows)) : tell(*reply, rows.error());
    });
  }
  tell(*reply, 404, fmt::format("there is no GET {}; docs/playground.md lists the endpoints", quote(request.path)));
}

void UiService::answer(Result<Json> (UiPort::*compute)(const Json&), const Json& body, const Reply& reply) {
  post_to(scores_, reply, [this, compute, body, reply] {
    const auto json = (port_->*compute)(body);
    return json.ok() ? reply->send(200, dump_json(*json)) : tell(*reply, json.error());
  });
}

void UiService::post(HttpRequest request, const Reply& reply) {
  JsonOptions options;
  options.limits.max_depth = kMaxUiJsonDepth;
  const auto body = parse_json(request.body, "the body", options);
  if (!body.ok()) return tell(*reply, 400, body.error().to_string());
  if (!body->is_object()) return tell(*reply, 400, "the body must be a JSON object");
  if (request.path == "/ui/score") return answer(&UiPort::score, *body, reply);
  if (request.path == "/ui/data_row") return answer(&UiPort::data_row, *body, reply);
  if (request.path != "/v1/completions" && request.path != "/v1/chat/completions" && request.path != "/tokenize" &&
      request.path != "/detokenize")
    return tell(*reply, 404,
                fmt::format("there is no POST {}; docs/playground.md lists the endpoints", quote(request.path)));
  const Json* const model = json_find(*body, "model");
  if (model == nullptr || !model->is_string())
    return tell(*reply, 400, "\"model\" must name one of the models that GET /v1/models lists");
  request.from_browser = false;  // the gate has let this page's requests in
  const std::string name = model->get<std::string>();
  models_.handle(name, std::move(request), reply);
}

void UiService::stop() {
  hub_.stop();
  files_.stop();
  scores_.stop();
  models_.stop();
}

}  // namespace mortise
