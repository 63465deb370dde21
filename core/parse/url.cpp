// Finds the login of each URL in a text, and replaces it.
#include "parse/url.h"

#include <cstddef>

namespace mortise::parse {
namespace {

constexpr std::string_view kScheme = "://";
constexpr std::string_view kEnds = "/?# \t\r\n\"'<>`\\";  // a URL's part with the login ends at one of these

}  // namespace

std::string redact_userinfo(std::string_view text) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = text.find(kScheme); at != std::string_view::npos; at = text.find(kScheme, at)) {
    at += kScheme.size();
    const std::size_t end = text.substr(at, text.find_first_of(kEnds, at) - at).rfind('@');
    if (end == std::string_view::npos) continue;
    out += text.substr(done, at - done);
    out += kRedacted;
    done = at + end;
    at = done;
  }
  if (done == 0) return std::string(text);
  out += text.substr(done);
  return out;
}

bool is_redacted(std::string_view text) {
  return text.find(std::string(kScheme) + std::string(kRedacted) + "@") != std::string_view::npos;
}

}  // namespace mortise::parse
