// Runs several requests on one libcurl multi handle, with retries and the circuit breaker.
#include "http_client.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <list>
#include <new>

#include "../../shared/deadline.h"

namespace mortise {
namespace {

constexpr double kMaxPause = 10;
constexpr std::size_t kMaxResponseBytes = std::size_t(64) << 20;
constexpr int kSliceMs = 100;

std::int64_t to_ns(double seconds) { return std::int64_t(seconds * 1e9); }

std::string seconds(double s) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", s);
  return text;
}

std::size_t take_bytes(char* bytes, std::size_t size, std::size_t count, void* out) noexcept {
  try {
    auto* text = static_cast<std::string*>(out);
    if (text->size() + size * count > kMaxResponseBytes) return 0;
    text->append(bytes, size * count);
    return size * count;
  } catch (...) {
    return 0;
  }
}

}  // namespace

// One try of one job.
struct HttpClient::Attempt {
  std::size_t job = 0;
  CURL* easy = nullptr;
  std::string response;
  char error[CURL_ERROR_SIZE] = "";
};

struct HttpClient::Batch {
  struct Waiting {
    std::size_t job;
    std::int64_t not_before_ns;
  };
  std::vector<HttpJob>& jobs;
  std::int64_t deadline_ns;
  std::vector<std::int64_t> num_tries;
  std::deque<Waiting> waiting;
  std::list<Attempt> active;
};

bool HttpClient::post(std::vector<HttpJob>& jobs, std::int64_t deadline_ns, const std::function<bool()>& stop) {
  const NoSigpipe quiet;
  Batch batch{jobs, deadline_ns, std::vector<std::int64_t>(jobs.size()), {}, {}};
  for (std::size_t i = 0; i < jobs.size(); ++i) batch.waiting.push_back({i, 0});
  while (!batch.waiting.empty() || !batch.active.empty()) {
    const std::int64_t now = monotonic_ns();
    if (deadline_ns != 0 && now >= deadline_ns) {
      const auto fail = [&](std::size_t job) {
        jobs[job].error = "no answer before the time for the batch (timeout) was over";
        if (!last_error_.empty()) jobs[job].error += "; last failure: " + last_error_;
        jobs[job].too_late = true;
      };
      for (const Batch::Waiting& one : batch.waiting) fail(one.job);
      for (const Attempt& one : batch.active) fail(one.job);
      drop(batch);
      return true;
    }
    if (stop()) {
      drop(batch);
      return false;
    }
    start(batch);
    int num_running = 0;
    curl_multi_perform(calls_.multi(), &num_running);
    take(batch);
    std::int64_t wake = now + std::int64_t(kSliceMs) * 1'000'000;
    if (deadline_ns != 0) wake = std::min(wake, deadline_ns);
    for (const Batch::Waiting& one : batch.waiting) wake = std::min(wake, std::max(one.not_before_ns, now + 1'000'000));
    if (!batch.active.empty() || !batch.waiting.empty())
      curl_multi_poll(calls_.multi(), nullptr, 0, int(std::max<std::int64_t>((wake - now) / 1'000'000, 1)), nullptr);
  }
  return true;
}

// Why nothing may be sent now; empty: it may.
std::string HttpClient::refusal(std::int64_t now) const {
  if (num_failures_ < options_.breaker_failures) return "";
  const std::string why = "not sent: the last " + std::to_string(num_failures_) + " attempts at " + options_.url +
                          " failed, the last with: " + last_error_;
  if (now < open_until_ns_) return why + "; the next try is in " + seconds(double(open_until_ns_ - now) * 1e-9);
  return is_trying_ ? why + "; one request is trying again" : "";
}

void HttpClient::start(Batch& batch) {
  const std::int64_t now = monotonic_ns();
  for (std::size_t k = 0; k < batch.waiting.size();) {
    if (std::int64_t(batch.active.size()) >= options_.max_concurrent) return;
    const Batch::Waiting one = batch.waiting[k];
    if (one.not_before_ns > now) {
      ++k;
      continue;
    }
    const std::string refused = refusal(now);
    if (!refused.empty() && is_trying_ && now >= open_until_ns_) return;  // until the one that tries is back
    batch.waiting.erase(batch.waiting.begin() + std::ptrdiff_t(k));
    if (!refused.empty()) {
      batch.jobs[one.job].error = refused;
      continue;
    }
    is_trying_ = num_failures_ >= options_.breaker_failures;
    Attempt& attempt = batch.active.emplace_back();
    attempt.job = one.job;
    attempt.easy = curl_easy_init();
    if (attempt.easy == nullptr) throw std::bad_alloc();
    ++batch.num_tries[one.job];
    const std::string& body = batch.jobs[one.job].body;
    double limit = options_.request_limit;
    if (batch.deadline_ns != 0) limit = std::min(limit, double(batch.deadline_ns - now) * 1e-9 + 0.01);
    const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(attempt.easy, option, value); };
    set(CURLOPT_URL, options_.url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_HTTPHEADER, calls_.headers());
    set(CURLOPT_POSTFIELDS, body.c_str());
    set(CURLOPT_POSTFIELDSIZE_LARGE, curl_off_t(body.size()));
    set(CURLOPT_TIMEOUT_MS, std::max(long(limit * 1e3), 1L));
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_USERAGENT, "mortise");
    set(CURLOPT_WRITEFUNCTION, &take_bytes);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&attempt.response));
    set(CURLOPT_ERRORBUFFER, static_cast<char*>(attempt.error));
    curl_multi_add_handle(calls_.multi(), attempt.easy);
  }
}

void HttpClient::take(Batch& batch) {
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(calls_.multi(), &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const CURLcode code = message->data.result;
    const auto it = std::find_if(batch.active.begin(), batch.active.end(),
                                 [&](const Attempt& one) { return one.easy == message->easy_handle; });
    settle(batch, *it, code);
    curl_multi_remove_handle(calls_.multi(), it->easy);
    curl_easy_cleanup(it->easy);
    batch.active.erase(it);
  }
}

void HttpClient::settle(Batch& batch, Attempt& attempt, CURLcode code) {
  if (code != CURLE_OK) {
    std::string text = attempt.error[0] != '\0' ? attempt.error : curl_easy_strerror(code);
    if (code == CURLE_WRITE_ERROR)
      text = "the answer is longer than " + std::to_string(kMaxResponseBytes >> 20) + " MiB";
    const bool passes = may_pass(code);
    return judge(batch, attempt.job, text, passes, 0);
  }
  long status = 0;
  curl_off_t retry_after = 0;
  curl_easy_getinfo(attempt.easy, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(attempt.easy, CURLINFO_RETRY_AFTER, &retry_after);
  if (status >= 200 && status < 300) {
    num_failures_ = 0;
    is_trying_ = false;
    batch.jobs[attempt.job].response = std::move(attempt.response);
    return;
  }
  judge(batch, attempt.job, "status " + std::to_string(status) + ": " + excerpt(attempt.response), may_pass(status),
        double(retry_after));
}

// A failed attempt: tried again, or the error of its job.
void HttpClient::judge(Batch& batch, std::size_t job, std::string error, bool passes, double pause) {
  is_trying_ = false;
  last_error_ = error;
  const std::int64_t now = monotonic_ns();
  if (!passes) {
    num_failures_ = 0;  // the service answers, or no number of tries will make it
    batch.jobs[job].error = options_.url + ": " + error;
    return;
  }
  if (++num_failures_ >= options_.breaker_failures) open_until_ns_ = now + to_ns(options_.breaker_pause);
  const std::int64_t tries = batch.num_tries[job];
  if (tries > options_.retries) {
    batch.jobs[job].error =
        options_.url + ": " + error + " (after " + std::to_string(tries) + (tries == 1 ? " attempt)" : " attempts)");
    return;
  }
  const double doubled = std::min(options_.backoff * std::pow(2.0, double(tries - 1)), kMaxPause);
  batch.waiting.push_back({job, now + to_ns(std::max(doubled, std::min(pause, kMaxPause)))});
}

void HttpClient::drop(Batch& batch) {
  for (const Attempt& one : batch.active) {
    curl_multi_remove_handle(calls_.multi(), one.easy);
    curl_easy_cleanup(one.easy);
  }
  batch.active.clear();
  batch.waiting.clear();
  is_trying_ = false;
}

}  // namespace mortise
