// What every client of a web service in these packs does alike: signals, headers and keys, which failures may pass, and
// how an answer is quoted. Header-only; libcurl's codes.
#pragma once

#include <curl/curl.h>

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <new>
#include <string>
#include <vector>

#include <mortise/cpp/plugin.hpp>

namespace mortise {

// A TLS library may write to a closed socket, which sends SIGPIPE. Only this thread blocks the signal.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;
  ~NoSigpipe() {
    const timespec at_once{};
    if (!was_pending_)
      while (sigtimedwait(&pipe_, nullptr, &at_once) > 0) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
  bool was_pending_;
};

// A multi handle, and the headers of calls that carry JSON both ways. Remove the easy handles before it goes.
class JsonCalls {
 public:
  explicit JsonCalls(const std::vector<std::string>& more_headers) {
    static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (ready != CURLE_OK) throw std::bad_alloc();
    multi_ = curl_multi_init();
    if (multi_ == nullptr) throw std::bad_alloc();
    // Without "Expect" no second is lost on services that do not know 100-continue.
    for (const char* line : {"Content-Type: application/json", "Accept: application/json", "Expect:"})
      headers_ = curl_slist_append(headers_, line);
    for (const std::string& line : more_headers) headers_ = curl_slist_append(headers_, line.c_str());
  }
  JsonCalls(const JsonCalls&) = delete;
  JsonCalls& operator=(const JsonCalls&) = delete;
  ~JsonCalls() {
    const NoSigpipe quiet;
    curl_multi_cleanup(multi_);
    curl_slist_free_all(headers_);
  }

  CURLM* multi() const { return multi_; }
  curl_slist* headers() const { return headers_; }

 private:
  CURLM* multi_ = nullptr;
  curl_slist* headers_ = nullptr;
};

// The header for the key in an environment variable, which the parameter `param` names.
inline std::string bearer_header(const std::string& param, const std::string& variable) {
  const char* key = std::getenv(variable.c_str());
  if (key == nullptr || *key == '\0') {
    fail(MORTISE_FAILED_PRECONDITION,
         param + ": the environment variable '" + variable + "' is not set. Export it before the run");
  }
  return "Authorization: Bearer " + std::string(key);
}

// The beginning of what a service said, on one line.
inline std::string excerpt(std::string text) {
  constexpr std::size_t kExcerptBytes = 200;
  if (text.size() > kExcerptBytes) text = text.substr(0, kExcerptBytes) + "...";
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  return text;
}

// Failures that may be gone at the next try.
inline bool may_pass(long status) { return status == 408 || status == 429 || status >= 500; }
// An error of the address or the certificate does not go away.
inline bool may_pass(CURLcode code) {
  return code != CURLE_WRITE_ERROR && code != CURLE_UNSUPPORTED_PROTOCOL && code != CURLE_URL_MALFORMAT &&
         code != CURLE_PEER_FAILED_VERIFICATION && code != CURLE_SSL_CACERT_BADFILE;
}

}  // namespace mortise
