// Keeps secrets out of what a run shows and writes.
//
// Everything that plugins say and everything that is logged passes through redacted(). It removes the logins of URLs,
// and the values of the environment variables that rewards were given. Thread rule: any thread.
#pragma once

#include <string>
#include <string_view>

namespace mortise {

// From now on redacted() replaces `value` by "$NAME". Values of fewer than kShortestSecret bytes are not replaced: they
// would hit ordinary words.
inline constexpr size_t kShortestSecret = 6;
void add_secret(std::string_view name, std::string_view value);
// The value of the environment variable `name`, if it is set.
void add_secret_variable(const std::string& name);

// The same for a secret in the configuration itself (a parameter with the role `secret`).
void add_secret_setting(std::string_view name, std::string_view value);

[[nodiscard]] std::string redacted(std::string_view text);
// Secrets of a configuration: logins of URLs and secret settings. Environment variables are left out, because one such as
// PYTHONPATH may have a value that a key has too.
[[nodiscard]] std::string redacted_settings(std::string_view text);

// The NAME of "env:NAME", the form in which a plugin's parameter names a secret; empty for every other text.
[[nodiscard]] std::string_view secret_reference(std::string_view text);
// A letter or "_", and then letters, digits and "_".
[[nodiscard]] bool is_variable_name(std::string_view name);

}  // namespace mortise
