// Addresses, the query of a request's target, and secrets in requests. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mortise {

// The value of `name` in "a=1&b=2", as it came; nothing if it is not there.
std::optional<std::string> query_value(std::string_view query, std::string_view name);

// "%2F" and "+" become characters; other text stays.
std::string decode_url(std::string_view text);
// The text as the value of a query: all but letters, digits, '-', '_', '.' and '~' is written as "%2F".
std::string encode_url(std::string_view text);

// "http://127.0.0.1:8000"; an IPv6 address gets its brackets.
std::string http_url(std::string_view host, uint16_t port);

// Takes the same time for all texts of a length.
bool equal_secrets(std::string_view a, std::string_view b);

// The key of an "Authorization: Bearer KEY" header is this one.
bool is_bearer(std::string_view authorization, std::string_view key);

}  // namespace mortise
