// http: a reward that lives behind a web service.
//
// The rows of a step go out as JSON in requests of `batch_size`, several at a time:
//   {"step": 3, "is_validation": false, "rows": [{"prompt": "...", "completion": "...", "columns": {...}}, ...]}
// and the service answers {"rewards": [...]} or the list alone, an entry a row: a number; null where the reward does
// not apply; {"score": number, NAME: number, ...}; {"error": "why"}. docs/plugins/http_rewards.md has the whole
// contract.
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include <mortise/cpp/mortise.hpp>

#include "../shared/deadline.h"
#include "http_client.h"
#include "parse/json.h"
#include "row_json.h"

namespace mortise {
namespace {

using Json = nlohmann::json;

constexpr const char* kReasons[] = {"stop", "length", "abort"};

struct Http : BatchReward {
  static constexpr const char* summary =
      "rewards from a web service: JSON over HTTP, with retries and a circuit breaker";
  static constexpr std::uint32_t flags = MORTISE_FLAG_NEEDS_NETWORK;

  HttpOptions options = read_options();
  std::string token_env = param("token_env", "", "environment variable with a bearer token for the service");
  std::int64_t batch_size = param("batch_size", 64, "rows of one request").range(1, 65536);
  bool send_ids = param("send_ids", false, "send prompt_ids and completion_ids too");

  std::unique_ptr<HttpClient> client;

  static HttpOptions read_options() {
    HttpOptions o;
    o.url = param<std::string>("url", required, "address of the service, http:// or https://");
    o.max_concurrent = param("max_concurrent", 4, "requests under way at once").range(1, 1024);
    o.retries = param("retries", 3, "attempts after the first that fails in a way that may pass").range(0, 100);
    o.request_limit = param("request_limit", 10.0, "longest time of one attempt in seconds").range(0.001, 1e6);
    o.backoff = param("backoff", 0.2, "seconds before the second attempt; doubles, up to 10").range(0, 10);
    o.breaker_failures =
        param("breaker_failures", 20, "failed attempts in a row after which nothing is sent for a while").at_least(1);
    o.breaker_pause = param("breaker_pause", 30.0, "seconds for which nothing is sent then").range(0, 1e6);
    return o;
  }

  void setup(Call) override {
    if (options.url.rfind("http://", 0) != 0 && options.url.rfind("https://", 0) != 0) {
      fail(MORTISE_INVALID_ARGUMENT,
           "url: '" + options.url + "' is no address of a service; it looks like http://127.0.0.1:8000/score");
    }
    if (!token_env.empty()) {
      const char* token = std::getenv(token_env.c_str());
      if (token == nullptr || *token == '\0') {
        fail(MORTISE_FAILED_PRECONDITION,
             "token_env: the environment variable '" + token_env + "' is not set. Export it before the run");
      }
      options.headers.push_back("Authorization: Bearer " + std::string(token));
    }
    client = std::make_unique<HttpClient>(options);
  }

  void score(const std::vector<Row>& rows, Span<double> rewards, Call call) override {
    std::vector<HttpJob> jobs;
    std::vector<std::vector<std::size_t>> rows_of;  // by job
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::string fault = unreadable(rows[i]);
      if (!fault.empty()) {
        call.fail_row(std::int64_t(i), MORTISE_INVALID_ARGUMENT, fault);
        continue;
      }
      if (rows_of.empty() || std::int64_t(rows_of.back().size()) == batch_size) rows_of.emplace_back();
      rows_of.back().push_back(i);
    }
    for (const auto& indices : rows_of) jobs.push_back({request(rows, indices), "", "", false});
    const std::int64_t deadline = waiting_deadline_ns(call);
    const bool whole = client->post(jobs, deadline, [&] { return call.cancelled(); });
    if (!whole) fail(MORTISE_CANCELLED, "cancelled");
    for (std::size_t k = 0; k < jobs.size(); ++k) take(jobs[k], rows_of[k], rows, rewards, call);
  }

 private:
  std::string request(const std::vector<Row>& rows, const std::vector<std::size_t>& indices) const {
    const Row& first = rows[indices.front()];
    std::string out = "{\"step\":" + std::to_string(first.step()) +
                      ",\"is_validation\":" + (first.is_validation() ? "true" : "false") + ",\"rows\":[";
    for (const std::size_t i : indices) {
      if (i != indices.front()) out += ',';
      out += row_json(rows[i]);
    }
    return out + "]}";
  }

  std::string row_json(const Row& row) const {
    std::string out = "{\"prompt\":" + json_text(row.prompt());
    if (!row.messages().empty()) out += ",\"messages\":" + std::string(row.messages());
    out += ",\"completion\":" + json_text(row.completion());
    const std::int32_t reason = row.finish_reason();
    if (reason >= 0 && reason <= MORTISE_FINISH_ABORT)
      out += std::string(",\"finish_reason\":\"") + kReasons[reason] + "\"";
    if (send_ids) {
      out += ",\"prompt_ids\":" + json_ids(row.prompt_ids());
      out += ",\"completion_ids\":" + json_ids(row.completion_ids());
    }
    out += ",\"columns\":{";
    for (const std::string_view name : row.column_names()) {
      if (out.back() != '{') out += ',';
      out += json_text(name) + ":" + json_cell(row, name);
    }
    return out + "}}";
  }

  void take(const HttpJob& job, const std::vector<std::size_t>& indices, const std::vector<Row>& rows,
            Span<double> rewards, Call call) const {
    const auto fail_all = [&](std::int32_t code, const std::string& text) {
      for (const std::size_t i : indices) call.fail_row(std::int64_t(i), code, text);
    };
    if (!job.error.empty()) return fail_all(job.too_late ? MORTISE_DEADLINE_EXCEEDED : MORTISE_UNAVAILABLE, job.error);
    auto parsed = parse::parse_json(job.response);
    if (!parsed) {
      return fail_all(MORTISE_DATA_LOSS, options.url + " answered no JSON to " + std::to_string(indices.size()) +
                                             " rows: " + job.response.substr(0, 100) + " (" +
                                             parsed.fault().to_string() + ")");
    }
    Json answer = *std::move(parsed);
    if (answer.is_object() && answer.contains("rewards")) answer = Json(answer["rewards"]);
    if (!answer.is_array() || answer.size() != indices.size()) {
      const std::string got =
          answer.is_array() ? std::to_string(answer.size()) + " rewards" : "neither a list nor {\"rewards\": [...]}";
      return fail_all(MORTISE_DATA_LOSS, options.url + " answered " + got + " to " + std::to_string(indices.size()) +
                                             " rows: " + job.response.substr(0, 100));
    }
    for (std::size_t k = 0; k < indices.size(); ++k) take_row(answer[k], indices[k], rows, rewards, call);
  }

  void take_row(const Json& entry, std::size_t i, const std::vector<Row>& rows, Span<double> rewards, Call call) const {
    const auto bad = [&](const std::string& text) {
      call.fail_row(std::int64_t(i), MORTISE_DATA_LOSS, options.url + ": " + text);
    };
    const Json* score = &entry;
    if (entry.is_object()) {
      if (entry.contains("error"))
        return bad(entry["error"].is_string() ? entry["error"].get<std::string>() : entry["error"].dump());
      if (!entry.contains("score")) return bad("an entry without 'score' or 'error': " + shown(entry));
      score = &entry["score"];
    }
    if (score->is_null()) return;
    if (!score->is_number() && !score->is_boolean()) return bad("a reward that is no number: " + shown(*score));
    rewards[std::int64_t(i)] = score->is_boolean() ? double(score->get<bool>()) : score->get<double>();
    if (!entry.is_object()) return;
    for (const auto& [name, value] : entry.items()) {
      if (name == "score" || name.empty()) continue;
      if (value.is_number()) rows[i].note(name, value.get<double>());
      if (value.is_boolean()) rows[i].note(name, value.get<bool>() ? 1 : 0);
    }
  }

  static std::string shown(const Json& value) {
    const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.size() <= 80 ? text : text.substr(0, 77) + "...";
  }
};

}  // namespace
}  // namespace mortise

MORTISE_REWARD("http", mortise::Http)
