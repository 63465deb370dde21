// http: a reward from a web service.
//
// It sends the rows of a step as JSON in requests of `batch_size`, several at a time:
//   {"step": 3, "is_validation": false, "rows": [{"prompt": "...", "completion": "...", "columns": {...}}, ...]}
// The service answers {"rewards": [...]} or the list alone, with one entry per row: a number; null if the reward does
// not apply; {"score": number, NAME: number, ...}; {"error": "why"}. docs/plugins/http_rewards.md has the whole
// contract.
#include <mortise/cpp/mortise.hpp>

#include "../../shared/deadline.h"
#include "../shared/row_json.h"
#include "http_answer.h"
#include "http_client.h"

namespace mortise {
namespace {

constexpr const char* kReasons[] = {"stop", "length", "abort"};

struct Http : BatchReward {
  static constexpr const char* summary =
      "rewards from a web service: JSON over HTTP, with retries and a circuit breaker";
  static constexpr std::uint32_t flags = MORTISE_FLAG_NEEDS_NETWORK;

  HttpOptions options = read_options();
  std::string token_env =
      param("token_env", "", "environment variable with a bearer token for the service; plugins.env need not list it");
  std::int64_t batch_size = param("batch_size", 64, "rows per request").range(1, 65536);
  bool send_ids = param("send_ids", false, "also send prompt_ids and completion_ids");

  std::unique_ptr<HttpClient> client;

  static HttpOptions read_options() {
    HttpOptions o;
    o.url = param<std::string>("url", required,
                               "address of the service, http:// or https://; with a login in it, write env:NAME");
    o.max_concurrent = param("max_concurrent", 4, "requests at the same time").range(1, 1024);
    o.retries =
        param("retries", 3, "further attempts after a temporary failure: no connection, time-out, 408, 429, 5xx")
            .range(0, 100);
    o.request_limit = param("request_limit", 10.0,
                            "time limit of one attempt in seconds; `timeout` limits all rows of a step together")
                          .range(0.001, 1e6);
    o.backoff =
        param("backoff", 0.2,
              "seconds before the second attempt; doubles each time, up to 10. Retry-After is obeyed up to 10 s")
            .range(0, 10);
    o.breaker_failures =
        param("breaker_failures", 20, "after this many failed attempts in a row the reward stops sending for a while")
            .at_least(1);
    o.breaker_pause = param("breaker_pause", 30.0, "seconds until it tries one request again").range(0, 1e6);
    return o;
  }

  void setup(Call) override {
    if (options.url.rfind("http://", 0) != 0 && options.url.rfind("https://", 0) != 0) {
      fail(MORTISE_INVALID_ARGUMENT,
           "url: '" + options.url + "' is not a web address; write it like http://127.0.0.1:8000/score");
    }
    if (!token_env.empty()) options.headers.push_back(bearer_header("token_env", token_env));
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
    Taken taken(options.url, indices, rows, rewards, call);
    const std::string fault = read_http_answer(job.response, indices.size(), taken);
    if (!fault.empty()) fail_all(MORTISE_DATA_LOSS, options.url + " " + fault);
  }

  // What an answer says goes to the rows of its request.
  class Taken final : public HttpAnswerSink {
   public:
    Taken(const std::string& url, const std::vector<std::size_t>& indices, const std::vector<Row>& rows,
          Span<double> rewards, Call call)
        : url_(url), indices_(indices), rows_(rows), rewards_(rewards), call_(call) {}
    void reward(std::size_t row, double value) override { rewards_[std::int64_t(indices_[row])] = value; }
    void note(std::size_t row, const std::string& name, double value) override {
      rows_[indices_[row]].note(name, value);
    }
    void failed(std::size_t row, const std::string& why) override {
      call_.fail_row(std::int64_t(indices_[row]), MORTISE_DATA_LOSS, url_ + ": " + why);
    }

   private:
    const std::string& url_;
    const std::vector<std::size_t>& indices_;
    const std::vector<Row>& rows_;
    Span<double> rewards_;
    Call call_;
  };
};

}  // namespace
}  // namespace mortise

MORTISE_REWARD("http", mortise::Http)
