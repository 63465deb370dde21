// See access.h.
#include "serve/ui/access.h"

#include <algorithm>

#include "foundation/base/text.h"
#include "serve/http/query.h"

namespace mortise {
namespace {

// "[::1]:8000" -> "::1"
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return std::ranges::count(host, ':') > 1 ? host : host.substr(0, host.find(':'));
}

bool is_ipv4(std::string_view text) {
  const auto parts = split(text, '.');
  return parts.size() == 4 && std::ranges::all_of(parts, [](std::string_view part) {
           return !part.empty() && part.size() <= 3 &&
                  std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
         });
}

bool has_token(const HttpRequest& request, const std::string& token) {
  if (is_bearer(request.authorization, token)) return true;
  const auto given = query_value(request.query, "token");
  return given && equal_secrets(decode_url(*given), token);
}

// A person may follow a link to a page from anywhere.
bool opens_page(const HttpRequest& request) { return request.method == "GET" && request.fetch_mode == "navigate"; }

}  // namespace

bool is_loopback_host(std::string_view host) {
  const std::string_view name = without_port(host);
  return name == "localhost" || name == "::1" || (name.starts_with("127.") && is_ipv4(name));
}

std::optional<HttpRefusal> refuse_request(const HttpRequest& request, const UiAccess& access) {
  if (access.only_loopback && !is_loopback_host(request.host))
    return HttpRefusal{403, "the request's Host is not this machine; open the address that mortise serve printed"};
  if (request.from_browser && request.origin != "http://" + request.host)
    return HttpRefusal{403,
                       "requests from other web pages are refused (Origin header); open the address that "
                       "mortise serve printed"};
  const bool is_own = request.fetch_site.empty() || request.fetch_site == "same-origin" || request.fetch_site == "none";
  if (!is_own && !opens_page(request))
    return HttpRefusal{403,
                       "requests from other web pages are refused (Sec-Fetch-Site header); open the address that "
                       "mortise serve printed"};
  if (!has_token(request, access.token))
    return HttpRefusal{401,
                       "the token is missing or wrong; open the address with ?token=... that mortise serve printed"};
  return std::nullopt;
}

}  // namespace mortise
