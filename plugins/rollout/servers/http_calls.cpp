// See http_calls.h.
#include "http_calls.h"

#include <algorithm>
#include <new>

namespace mortise {
namespace {

constexpr std::size_t kMaxAnswerBytes = std::size_t(256) << 20;
constexpr long kConnectMs = 10'000;

// Status and text of an answer that is not 2xx, and what to do about the address or the key.
void tell_refusal(CURL* easy, HttpDone& done) {
  done.error = "status " + std::to_string(done.status);
  if (const std::string text = excerpt(done.body); !text.empty()) done.error += ": " + text;
  char* to = nullptr;
  const bool redirects = curl_easy_getinfo(easy, CURLINFO_REDIRECT_URL, &to) == CURLE_OK && to != nullptr;
  done.has_remedy = redirects || done.status == 401 || done.status == 403;
  if (redirects)
    done.error += std::string(", it redirects to ") + to + "; write the server's own address into `url`";
  else if (done.has_remedy)
    done.error += "; name the variable with the server's key in `api_key_env`";
}

}  // namespace

struct HttpCalls::Transfer {
  Transfer() : easy(curl_easy_init()) {
    if (easy == nullptr) throw std::bad_alloc();
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() { curl_easy_cleanup(easy); }

  static std::size_t take_bytes(char* bytes, std::size_t size, std::size_t count, void* self) noexcept {
    try {
      std::string& text = static_cast<Transfer*>(self)->answer;
      if (text.size() + size * count > kMaxAnswerBytes) return 0;
      text.append(bytes, size * count);
      return size * count;
    } catch (...) {
      return 0;
    }
  }

  CURL* easy;
  std::int64_t id = 0;
  std::string body, answer;
  char error[CURL_ERROR_SIZE] = "";
};

HttpCalls::HttpCalls(const std::vector<std::string>& headers) : calls_(headers) {}

HttpCalls::~HttpCalls() {
  const NoSigpipe quiet;
  for (const auto& [id, transfer] : active_) curl_multi_remove_handle(calls_.multi(), transfer->easy);
  active_.clear();
}

void HttpCalls::start(std::int64_t id, const std::string& url, const HttpCall& call, double limit_s) {
  auto transfer = std::make_unique<Transfer>();
  transfer->id = id;
  transfer->body = call.body;
  const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(transfer->easy, option, value); };
  set(CURLOPT_URL, (url + call.path).c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_HTTPHEADER, calls_.headers());
  if (!call.is_get) {
    set(CURLOPT_POSTFIELDS, transfer->body.c_str());
    set(CURLOPT_POSTFIELDSIZE_LARGE, curl_off_t(transfer->body.size()));
  }
  set(CURLOPT_TIMEOUT_MS, std::max(long(limit_s * 1e3), 1L));
  set(CURLOPT_CONNECTTIMEOUT_MS, kConnectMs);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_USERAGENT, "mortise");
  set(CURLOPT_WRITEFUNCTION, &Transfer::take_bytes);
  set(CURLOPT_WRITEDATA, static_cast<void*>(transfer.get()));
  set(CURLOPT_PRIVATE, static_cast<void*>(transfer.get()));
  set(CURLOPT_ERRORBUFFER, static_cast<char*>(transfer->error));
  const NoSigpipe quiet;
  curl_multi_add_handle(calls_.multi(), transfer->easy);
  active_[id] = std::move(transfer);
}

void HttpCalls::cancel(std::int64_t id) {
  const auto found = active_.find(id);
  if (found == active_.end()) return;
  const NoSigpipe quiet;
  curl_multi_remove_handle(calls_.multi(), found->second->easy);
  active_.erase(found);
}

void HttpCalls::take(CURL* easy, CURLcode code, std::vector<HttpDone>& out) {
  void* self = nullptr;
  curl_easy_getinfo(easy, CURLINFO_PRIVATE, &self);
  auto* const transfer = static_cast<Transfer*>(self);
  HttpDone& done = out.emplace_back();
  done.id = transfer->id;
  long num_connects = 0;
  curl_easy_getinfo(easy, CURLINFO_NUM_CONNECTS, &num_connects);
  done.new_connection = num_connects > 0;
  char* address = nullptr;
  if (curl_easy_getinfo(easy, CURLINFO_LOCAL_IP, &address) == CURLE_OK && address != nullptr)
    done.own_address = address;
  if (code != CURLE_OK) {
    done.error = transfer->error[0] != '\0' ? transfer->error : curl_easy_strerror(code);
    if (code == CURLE_WRITE_ERROR)
      done.error = "the answer is longer than " + std::to_string(kMaxAnswerBytes >> 20) + " MiB";
    done.may_pass = may_pass(code);
  } else {
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &done.status);
    done.body = std::move(transfer->answer);
    if (done.status < 200 || done.status > 299) {
      tell_refusal(easy, done);
      done.may_pass = may_pass(done.status);
    }
  }
  curl_multi_remove_handle(calls_.multi(), easy);
  active_.erase(done.id);
}

std::vector<HttpDone> HttpCalls::wait(int timeout_ms) {
  const NoSigpipe quiet;
  std::vector<HttpDone> out;
  for (int round = 0; round < 2 && out.empty(); ++round) {
    if (round == 1) curl_multi_poll(calls_.multi(), nullptr, 0, timeout_ms, nullptr);
    int num_running = 0;
    curl_multi_perform(calls_.multi(), &num_running);
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(calls_.multi(), &left)) {
      if (message->msg == CURLMSG_DONE) take(message->easy_handle, message->data.result, out);
    }
  }
  return out;
}

}  // namespace mortise
