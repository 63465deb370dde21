// Opens an index in a folder or at a URL, and starts mortise-fetch for each file.
#include "packs/fetch.h"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>

#include "foundation/base/private_folder.h"
#include "foundation/base/text.h"
#include "foundation/base/this_program.h"
#include "packs/archive.h"
#include "packs/rules.h"
#include "plugin/worker/child.h"

namespace mortise {
namespace {

// Exit codes of mortise-fetch (apps/fetch/main.cpp).
constexpr int kNotFound = 44;

class FolderSource final : public FileSource {
 public:
  FolderSource(Env& env, Path folder) : env_(env), folder_(std::move(folder)) {}
  Result<std::string> get(const std::string& name, uint64_t max_bytes, bool* missing) override {
    const Path path = folder_ / name;
    if (missing != nullptr && !env_.exists(path)) {
      *missing = true;
      return std::string();
    }
    if (TRY(env_.info(path)).size_bytes > max_bytes)
      return broken_rule(PackRule::kTransfer, "the file has more than " + format_bytes(max_bytes), path.string(),
                         "tell the publisher");
    return env_.read_file(path, max_bytes);
  }

 private:
  Env& env_;
  Path folder_;
};

class UrlSource final : public FileSource {
 public:
  UrlSource(Env& env, std::string base, FetchOptions options)
      : env_(env), base_(std::move(base)), options_(std::move(options)) {}

  Result<std::string> get(const std::string& name, uint64_t max_bytes, bool* missing) override {
    const std::string url = fmt::format("{}/{}", base_, name);
    const Path folder = TRY(make_private_folder("mortise_fetch_"));
    auto bytes = fetch(url, folder, max_bytes, missing);
    (void)remove_tree(env_, folder);
    return bytes;
  }

 private:
  Result<std::string> fetch(const std::string& url, const Path& folder, uint64_t max_bytes, bool* missing) {
    const Path file = folder / "file", log = folder / "log";
    const std::vector<std::string> words = {options_.program.string(), url, file.string(), std::to_string(max_bytes),
                                            std::to_string(options_.slow_after.count())};
    const ChildOutcome child = TRY(run_child(words, folder, log, options_.at_most));
    if (child.code == kNotFound && missing != nullptr) {
      *missing = true;
      return std::string();
    }
    const auto failed = [&](std::string what) {
      return broken_rule(PackRule::kTransfer, std::move(what), url, "try again, and tell the publisher if it stays so");
    };
    if (child.timed_out)
      return failed(fmt::format("the transfer took longer than {} s", options_.at_most.count() / 1000));
    if (child.code != 0) {
      const auto said = env_.read_file(log, 4096);
      const std::string why = said.ok() ? std::string(trim(*said)) : "";
      return failed(why.empty() ? "mortise-fetch ended with code " + std::to_string(child.code) : why);
    }
    return env_.read_file(file, max_bytes);
  }

  Env& env_;
  std::string base_;
  FetchOptions options_;
};

bool is_loopback(std::string_view host) { return host == "127.0.0.1" || host == "[::1]" || host == "localhost"; }

Error bad_url(std::string what, const std::string& url) {
  return {ErrorKind::kConfig, std::move(what), url, "name an index as in https://packs.acme.dev/mortise"};
}

// The parts of a URL, with scheme and host in small letters.
struct UrlParts {
  std::string scheme;  // "https://"
  std::string host, port, path;
};

// Nothing that curl could take for an option, a login or a file.
Result<UrlParts> split_url(const std::string& url) {
  for (const char c : url)
    if (static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 0x7F)
      return bad_url("a URL has no spaces and no letters beyond ASCII", url);
  UrlParts parts;
  const size_t colon = url.find("://");
  parts.scheme = to_lower_ascii(std::string_view(url).substr(0, colon + 3));
  const std::string_view rest = std::string_view(url).substr(colon + 3);
  if (rest.find_first_of("?#") != std::string_view::npos) return bad_url("the URL of an index ends with a folder", url);
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string_view authority = rest.substr(0, slash);
  parts.path = rest.substr(slash);
  if (authority.find('@') != std::string_view::npos) return bad_url("a URL with a login is not taken", url);
  const size_t host_end = authority.starts_with('[') ? authority.find(']') + 1 : authority.find(':');
  parts.host = to_lower_ascii(authority.substr(0, host_end));
  std::string_view port = authority.substr(std::min(host_end, authority.size()));
  while (parts.host.ends_with('.')) parts.host.pop_back();
  if (parts.host.empty()) return bad_url("the URL names no host", url);
  if (port.empty()) return parts;
  port.remove_prefix(1);
  while (port.starts_with('0')) port.remove_prefix(1);
  if (port.size() > 5 || port.find_first_not_of("0123456789") != std::string_view::npos)
    return bad_url("the port is not a number", url);
  parts.port = port;
  return parts;
}

bool is_unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

// %2d and %2D are one, and so are %41 and A (RFC 3986, 6.2.2).
Result<std::string> normal_escapes(std::string_view path, const std::string& url) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] != '%') {
      out += path[i];
      continue;
    }
    const auto digit = [&](size_t at) {
      const char c = at < path.size() ? path[at] : ' ';
      return kDigits.find(c >= 'a' && c <= 'f' ? static_cast<char>(c - 0x20) : c);
    };
    const size_t high = digit(i + 1), low = digit(i + 2);
    if (high == std::string_view::npos || low == std::string_view::npos)
      return bad_url("the URL has a % without two hex digits", url);
    const auto c = static_cast<char>(high * 16 + low);
    if (is_unreserved(c)) {
      out += c;
    } else {
      out += {'%', kDigits[high], kDigits[low]};
    }
    i += 2;
  }
  return out;
}

// "https://host..." or http to this machine, in its one spelling.
Result<std::string> normal_url(const std::string& url) {
  UrlParts parts = TRY(split_url(url));
  const bool is_secure = parts.scheme == "https://";
  if (!is_secure && !(parts.scheme == "http://" && is_loopback(parts.host)))
    return bad_url("an index is read over https", url);
  std::string out = parts.scheme + parts.host;
  if (!parts.port.empty() && parts.port != (is_secure ? "443" : "80")) out += ":" + parts.port;
  const std::string path = TRY(normal_escapes(parts.path, url));
  for (const std::string_view part : split(path, '/')) {
    if (part == "..") return bad_url("the URL has a part '..'", url);
    if (!part.empty() && part != ".") out.append("/").append(part);
  }
  return out;
}

}  // namespace

FetchOptions default_fetch_options() {
  FetchOptions options;
  options.program = this_program().parent_path() / "mortise-fetch";
  return options;
}

bool is_url(const std::string& place) { return place.find("://") != std::string::npos; }

Result<std::unique_ptr<FileSource>> open_source(Env& env, const std::string& place, const FetchOptions& options) {
  if (!is_url(place)) {
    const FileInfo info = TRY(env.info(place));
    if (!info.is_directory)
      return Error{ErrorKind::kData, "this is not the folder of an index", place,
                   "name the folder that holds index.json"};
    return std::unique_ptr<FileSource>(std::make_unique<FolderSource>(env, place));
  }
  return std::unique_ptr<FileSource>(std::make_unique<UrlSource>(env, TRY(normal_url(place)), options));
}

Result<std::string> normal_place(const std::string& place) {
  if (is_url(place)) return normal_url(place);
  std::error_code failed;
  std::string folder = std::filesystem::absolute(place, failed).lexically_normal().string();
  if (failed) return disk_error(failed.value(), "name", place);
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return folder;
}

}  // namespace mortise
