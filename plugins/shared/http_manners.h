// What every client of a web service in these packs does alike: signals, which failures may pass, and how an answer is
// quoted. Header-only; libcurl's codes.
#pragma once

#include <curl/curl.h>

#include <csignal>
#include <ctime>
#include <string>

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
