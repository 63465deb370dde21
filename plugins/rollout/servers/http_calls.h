// Calls to web services, many at a time, over one libcurl multi handle. It only carries: when to try again is for
// server_pool.h to say. Threading: one thread at a time; none is left behind.
#pragma once

#include <curl/curl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../../shared/http_manners.h"

namespace mortise {

struct HttpCall {
  std::string path;       // after the server's address: "/v1/completions"
  std::string body;       // JSON
  bool is_get = false;    // else POST
  bool optional = false;  // an old server may lack it (404, 405)
  bool removes = false;   // a refusal (400, 404) says that what it removes is not there
  bool samples = false;   // the server computes with its weights
  // What the trainer does while the server works on the call: both meet, or the trainer sends the weights.
  enum class Side { kNone, kJoin, kSend } side = Side::kNone;
  bool any_answer = false;  // a refusal is as good as any other answer
};

struct HttpDone {
  std::int64_t id = 0;
  long status = 0;  // 0: no answer came
  std::string body;
  std::string error;            // why no answer came, or status and text of one that is not 2xx
  bool may_pass = false;        // the error may be gone at the next try
  bool has_remedy = false;      // the error says what to change
  bool new_connection = false;  // it was made for this call
  std::string own_address;      // this machine's, as the server sees it
};

class HttpCalls {
 public:
  explicit HttpCalls(const std::vector<std::string>& headers);
  HttpCalls(const HttpCalls&) = delete;
  HttpCalls& operator=(const HttpCalls&) = delete;
  ~HttpCalls();

  void start(std::int64_t id, const std::string& url, const HttpCall& call, double limit_s);
  void cancel(std::int64_t id);  // its answer never comes
  // Waits up to timeout_ms for answers; at once if there are some.
  std::vector<HttpDone> wait(int timeout_ms);

 private:
  struct Transfer;
  void take(CURL* easy, CURLcode code, std::vector<HttpDone>& out);

  JsonCalls calls_;
  std::map<std::int64_t, std::unique_ptr<Transfer>> active_;
};

}  // namespace mortise
