// Logins in URLs, which must not reach a log, an error or a file. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace mortise::parse {

// What replaces a login: "https://REDACTED@host/path".
inline constexpr std::string_view kRedacted = "REDACTED";

// `text` with the login (user, password, token) of every URL in it replaced. Text without one is returned as it is.
[[nodiscard]] std::string redact_userinfo(std::string_view text);

// Whether a URL in it has had its login replaced.
[[nodiscard]] bool is_redacted(std::string_view text);

}  // namespace mortise::parse
