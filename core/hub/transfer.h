// One request to a hub, made by the program mortise-fetch: HTTP and TLS run in a process of their own, and a token is
// never among the words of a command, which every user of the machine can read. Threading: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "hub/options.h"

namespace mortise {

struct HubRequest {
  std::string url;
  bool head = false;    // only status and headers
  bool follow = false;  // redirects to any host; the token stays with the first one
  Path file;            // gets the body of a 200 or 206; empty: a temporary one, which `body` then holds
  uint64_t offset = 0;  // bytes that the file has; the server is asked for the rest
  uint64_t most = 0;    // bytes that the file may have in the end
  std::function<void()> while_it_runs = {};
};

struct HubAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in small letters; of the last response
  std::string body;

  [[nodiscard]] std::string header(const std::string& name) const;  // "" where there is none
};

// An Error if no answer came: no connection, too slow, too long. Every HTTP status is an answer.
Result<HubAnswer> send_request(Env& env, const HubOptions& options, const HubRequest& request);

}  // namespace mortise
