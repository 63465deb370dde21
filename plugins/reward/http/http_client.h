// POSTs of JSON, several at a time, with retries and a circuit breaker, over libcurl.
//
// An attempt that fails in a way that may pass (no connection, time-out, 408, 429, 5xx) is tried again after a pause
// that doubles. The breaker counts such failures in a row: from `breaker_failures` on nothing is sent for
// `breaker_pause`, and then one request tries whether the service is back. Threading: one thread at a time; none is
// left behind.
#pragma once

#include <curl/curl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../../shared/http_manners.h"

namespace mortise {

struct HttpOptions {
  std::string url;
  std::vector<std::string> headers;
  std::int64_t max_concurrent = 4;
  std::int64_t retries = 3;
  double request_limit = 10;  // seconds of one attempt
  double backoff = 0.2;       // seconds before the second attempt; doubles, 10 at most
  std::int64_t breaker_failures = 20;
  double breaker_pause = 30;
};

struct HttpJob {
  std::string body;
  std::string response;  // the answer with a status 2xx
  std::string error;     // empty: there is a response
  bool too_late = false;
};

class HttpClient {
 public:
  explicit HttpClient(HttpOptions options) : options_(std::move(options)), calls_(options_.headers) {}

  // Returns when every job has a response or an error; false if `stop` said so earlier. `deadline_ns` (CLOCK_MONOTONIC,
  // 0: none) is an error of the jobs that are not done by then.
  bool post(std::vector<HttpJob>& jobs, std::int64_t deadline_ns, const std::function<bool()>& stop);

 private:
  struct Attempt;
  struct Batch;
  void start(Batch& batch);
  void take(Batch& batch);
  void settle(Batch& batch, Attempt& attempt, CURLcode code);
  void judge(Batch& batch, std::size_t job, std::string error, bool may_pass, double pause);
  [[nodiscard]] std::string refusal(std::int64_t now) const;
  void drop(Batch& batch);

  HttpOptions options_;
  JsonCalls calls_;
  std::int64_t num_failures_ = 0;  // in a row
  std::int64_t open_until_ns_ = 0;
  bool is_trying_ = false;  // one request tries whether the service is back
  std::string last_error_;
};

}  // namespace mortise
