// See query.h.
#include "serve/http/query.h"

#include <fmt/core.h>

#include "foundation/base/text.h"

namespace mortise {
namespace {

std::optional<int> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

bool is_plain(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
         c == '.' || c == '~';
}

}  // namespace

std::optional<std::string> query_value(std::string_view query, std::string_view name) {
  for (const std::string_view part : split(query, '&')) {
    const size_t equals = part.find('=');
    if (part.substr(0, equals) == name)
      return equals == std::string_view::npos ? std::string() : std::string(part.substr(equals + 1));
  }
  return std::nullopt;
}

std::string decode_url(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : std::nullopt;
    const auto low = high ? hex_digit(text[i + 2]) : std::nullopt;
    if (low) {
      out += static_cast<char>(*high * 16 + *low);
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

std::string encode_url(std::string_view text) {
  std::string out;
  for (const char c : text)
    out += is_plain(c) ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return out;
}

std::string http_url(std::string_view host, uint16_t port) {
  const bool is_ipv6 = host.find(':') != std::string_view::npos;
  return fmt::format("http://{}{}{}:{}", is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", port);
}

bool equal_secrets(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

bool is_bearer(std::string_view authorization, std::string_view key) {
  constexpr std::string_view kBearer = "Bearer ";
  return authorization.starts_with(kBearer) && equal_secrets(authorization.substr(kBearer.size()), key);
}

}  // namespace mortise
