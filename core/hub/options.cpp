// Reads the environment variables of huggingface_hub.
#include "hub/options.h"

#include <fmt/core.h>

#include <cstdlib>
#include <optional>

#include "foundation/base/secrets.h"
#include "foundation/base/text.h"
#include "foundation/base/this_program.h"

namespace mortise {
namespace {

constexpr int kMostSeconds = 86'400;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : std::string(trim(value));
}

bool is_true(std::string text) {
  text = to_lower_ascii(text);
  return text == "1" || text == "true" || text == "yes" || text == "on";
}

// A token that is sent in the clear, or to another host than the user thinks, is lost.
Result<> check_endpoint(const std::string& endpoint) {
  const auto bad = [&](const std::string& what) {
    return Error{ErrorKind::kConfig, what, "HF_ENDPOINT=" + endpoint, "name the hub as in https://huggingface.co"};
  };
  const bool is_http = endpoint.starts_with("http://");
  if (!is_http && !endpoint.starts_with("https://")) return bad("the address of the hub must begin with https://");
  std::string_view rest = std::string_view(endpoint).substr(endpoint.find("://") + 3);
  for (const char c : rest) {
    if (static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 0x7F || c == '?' || c == '#' ||
        c == '@')
      return bad("the address of the hub has no logins, queries, spaces, nor letters beyond ASCII");
  }
  const std::string_view host = rest.substr(0, rest.find_first_of(":/"));
  if (rest.empty() || (host.empty() && !rest.starts_with("["))) return bad("the address of the hub names no host");
  if (is_http && host != "127.0.0.1" && host != "localhost" && !rest.starts_with("[::1]"))
    return bad("http is for servers of this machine alone");
  return {};
}

// The seconds that a variable gives, if it is set.
Result<> read_seconds(const char* name, std::chrono::milliseconds& out) {
  const std::string text = variable(name);
  if (text.empty()) return {};
  const std::optional<double> seconds = parse_f64(text);
  if (!seconds || !(*seconds >= 1.0 && *seconds <= kMostSeconds))
    return Error{
        ErrorKind::kConfig,
        fmt::format("the time-out must be a number of seconds from 1 to {}, but is {}", kMostSeconds, quote(text)),
        name, "correct the variable, or unset it"};
  out = std::chrono::milliseconds(static_cast<int64_t>(*seconds * 1000.0));
  return {};
}

Path home_of_hub() {
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return Path(cache) / "huggingface";
  const std::string home = variable("HOME");
  return home.empty() ? Path() : Path(home) / ".cache" / "huggingface";
}

std::string token(Env& env, const Path& home) {
  if (std::string token = variable("HF_TOKEN"); !token.empty()) return token;
  std::string path = variable("HF_TOKEN_PATH");
  if (path.empty()) path = (home / "token").string();
  constexpr uint64_t kMaxTokenBytes = 4096;
  const auto text = env.exists(path) ? env.read_file(path, kMaxTokenBytes) : Result<std::string>(std::string());
  return text.ok() ? std::string(trim(*text)) : std::string();
}

}  // namespace

Result<HubOptions> hub_options(Env& env) {
  HubOptions options;
  options.endpoint = variable("HF_ENDPOINT");
  if (options.endpoint.empty()) options.endpoint = "https://huggingface.co";
  while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
  TRY(check_endpoint(options.endpoint));
  TRY(read_seconds("HF_HUB_ETAG_TIMEOUT", options.facts_slow_after));
  TRY(read_seconds("HF_HUB_DOWNLOAD_TIMEOUT", options.download_slow_after));
  const Path home = home_of_hub();
  options.token = token(env, home);
  if (options.token.find_first_of("\r\n") != std::string::npos)
    return Error{ErrorKind::kConfig, "the token has several lines", "HF_TOKEN", "give the one line that the hub shows"};
  if (!options.token.empty()) add_secret("HF_TOKEN", options.token);
  options.offline = is_true(variable("HF_HUB_OFFLINE")) || is_true(variable("TRANSFORMERS_OFFLINE"));
  options.cache = variable("HF_HUB_CACHE");
  if (options.cache.empty() && !home.empty()) options.cache = home / "hub";
  if (options.cache.empty())
    return Error{ErrorKind::kConfig, "there is no place for the hub's cache", "HF_HOME", "set HF_HOME to a folder"};
  options.program = this_program().parent_path() / "mortise-fetch";
  return options;
}

}  // namespace mortise
