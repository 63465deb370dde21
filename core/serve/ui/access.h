// Who may use the pages of `mortise serve --ui`. A request must have the token, and must not come from another web page.
//
// Pages and event streams give the token in the address (?token=...). All other requests give it in the Authorization
// header. A page of another site may make a browser send requests, or give its own name this machine's address (DNS
// rebinding). Such requests have a foreign Origin, Sec-Fetch-Site or Host. Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "serve/http/http_server.h"

namespace mortise {

struct UiAccess {
  std::string token;
  bool only_loopback = true;  // the server listens on a loopback address: requests must name one as their host
};

// Why the request may not be answered; nothing if it may.
std::optional<HttpRefusal> refuse_request(const HttpRequest& request, const UiAccess& access);

// "localhost", "::1" and addresses that begin with 127, with or without a port.
bool is_loopback_host(std::string_view host);

}  // namespace mortise
