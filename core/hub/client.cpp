// Speaks the hub's HTTP interface.
#include "hub/client.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <thread>

#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"

namespace mortise {
namespace {

constexpr int kDownloadTries = 5, kFactTries = 2;
constexpr int kMaxMoves = 5;  // redirects of a repository that was renamed
constexpr uint64_t kMaxListBytes = uint64_t{64} << 20;
constexpr size_t kMaxFiles = 100'000;
constexpr std::chrono::seconds kMaxWait{60};

// All but the letters that need no escape in a path (RFC 3986), and "/".
std::string escaped(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                          c == '.' || c == '_' || c == '~' || c == '/';
    out += is_plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return out;
}

// The revision is one part of a URL, so its "/" are escaped.
std::string escaped_part(std::string_view text) {
  std::string out = escaped(text);
  for (size_t at = 0; (at = out.find('/', at)) != std::string::npos;) out.replace(at, 1, "%2F");
  return out;
}

// A path from a server becomes a path of this machine.
bool stays_below(std::string_view path) {
  if (path.empty() || path.size() > limits::kMaxPathBytes || path.find('\0') != std::string_view::npos ||
      path.find('\\') != std::string_view::npos || path.find('\n') != std::string_view::npos)
    return false;
  for (const std::string_view part : split(path, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

bool is_hex(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// W/"abc" and "abc" give abc. An etag that is no hash cannot be checked and cannot name a file: it gives nothing.
std::string normal_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return (etag.size() == 40 || etag.size() == 64) && is_hex(etag) ? etag : "";
}

std::string text_member(const Json& object, std::string_view key) {
  const Json* value = json_find(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

uint64_t size_member(const Json& object, std::string_view key) {
  const Json* value = json_find(object, key);
  return value != nullptr && value->is_number_unsigned() ? value->get<uint64_t>() : 0;
}

Error bad_list(const HubName& name, const std::string& what) {
  return {ErrorKind::kData, "the hub's list of files is wrong: " + what, name.full(),
          "check HF_ENDPOINT, and try again"};
}

Result<HubRevision> parse_revision(const Json& json, const HubName& name) {
  HubRevision out;
  out.commit = text_member(json, "sha");
  if (!is_commit(out.commit)) return bad_list(name, "it has no commit");
  const Json* siblings = json_find(json, "siblings");
  if (siblings == nullptr || !siblings->is_array() || siblings->size() > kMaxFiles)
    return bad_list(name, "it has no files, or too many");
  std::set<std::string> seen;
  for (const Json& entry : *siblings) {
    HubFile file;
    file.path = text_member(entry, "rfilename");
    if (!stays_below(file.path)) return bad_list(name, "the path " + quote(file.path));
    if (!seen.insert(file.path).second) return bad_list(name, quote(file.path) + " stands twice");
    const Json* lfs = json_find(entry, "lfs");
    const bool is_large = lfs != nullptr && lfs->is_object();
    file.etag = normal_etag(is_large ? text_member(*lfs, "sha256") : text_member(entry, "blobId"));
    if (!file.etag.empty()) file.size = is_large ? size_member(*lfs, "size") : size_member(entry, "size");
    out.files.push_back(std::move(file));
  }
  std::ranges::sort(out.files, {}, &HubFile::path);
  return out;
}

bool may_pass(int status) { return status == 408 || status == 429 || status >= 500; }
bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// What a status other than 200 means to the user.
Error refused(const HubAnswer& answer, const HubName& name, bool has_token) {
  const std::string code = answer.header("x-error-code"), where = name.full();
  const std::string what_it_is = name.kind == HubKind::kModel ? "model" : "data set";
  const std::string token = has_token ? "check that the account of your HF_TOKEN has access"
                                      : "set HF_TOKEN if it is private, or one that you asked access for";
  if (code == "GatedRepo" || answer.status == 403)
    return {ErrorKind::kData, fmt::format("the hub gives no access to this {}", what_it_is), where,
            has_token ? "ask for access on its page, with the account of your HF_TOKEN"
                      : "ask for access on its page, and set HF_TOKEN"};
  if (code == "RevisionNotFound")
    return {ErrorKind::kData, fmt::format("the {} has no revision {}", what_it_is, quote(name.revision)), where,
            "name a branch, a tag or a commit of it"};
  if (code == "EntryNotFound")
    return {ErrorKind::kData, "the file is not in this revision", where, "look at the list of files on its page"};
  if (answer.status == 401 || answer.status == 404)
    return {ErrorKind::kData, fmt::format("there is no such folder here, and the hub knows no such {}", what_it_is),
            where, "check the spelling; " + token};
  return {ErrorKind::kData,
          fmt::format("the hub answers with HTTP status {}{}", answer.status,
                      answer.header("x-error-message").empty()
                          ? ""
                          : ": " + quote(answer.header("x-error-message").substr(0, 200))),
          where, "try again later, or set HF_ENDPOINT to another hub"};
}

}  // namespace

std::string HubClient::file_url(const HubName& name, const std::string& commit, const std::string& path) const {
  return fmt::format("{}/{}{}/resolve/{}/{}", options_.endpoint, name.kind == HubKind::kModel ? "" : "datasets/",
                     name.repo, escaped_part(commit), escaped(path));
}

// A renamed repository is found at its new place on the same hub. HEAD of a large file ends at the redirect to its store.
Result<HubAnswer> HubClient::send_once(HubRequest request) {
  for (int moves = 0;; ++moves) {
    HubAnswer answer = TRY(send_request(env_, options_, request));
    std::string to = answer.header("location");
    if (to.starts_with('/') && !to.starts_with("//"))
      to = options_.endpoint.substr(0, options_.endpoint.find('/', 8)) + to;
    const bool stays = to.starts_with(options_.endpoint + "/") && answer.header("x-linked-etag").empty();
    if (!is_redirect(answer.status) || !stays || moves == kMaxMoves) return answer;
    request.url = to;
  }
}

Result<HubAnswer> HubClient::send(HubRequest request, const HubName& name, int most_tries) {
  auto wait = options_.first_wait;
  for (int tries = 1;; ++tries) {
    std::error_code failed;
    if (!request.file.empty()) {
      const auto size = std::filesystem::file_size(request.file, failed);
      request.offset = failed ? 0 : size;  // a try that broke off is continued
    }
    auto answer = send_once(request);
    const bool passes = answer.ok() ? may_pass(answer->status) : answer.error().kind == ErrorKind::kData;
    if (!passes || tries == most_tries) {
      if (!answer.ok()) return answer;
      const bool linked = request.head && is_redirect(answer->status);
      if (answer->status == 200 || answer->status == 206 || answer->status == 416 || linked) return answer;
      was_refused_ = !may_pass(answer->status);
      return refused(*answer, name, !options_.token.empty());
    }
    if (answer.ok()) {
      const auto asked = parse_i64(answer->header("retry-after"));
      if (asked && *asked > 0) wait = std::chrono::seconds(*asked);
    }
    wait = std::min<std::chrono::milliseconds>(wait, kMaxWait);
    log_info(fmt::format("{}: {}; trying again in {:.0f} s", name.full(),
                         answer.ok() ? fmt::format("HTTP status {}", answer->status) : answer.error().what,
                         static_cast<double>(wait.count()) / 1000));
    std::this_thread::sleep_for(wait);
    wait *= 2;
  }
}

Result<HubRevision> HubClient::revision(const HubName& name) {
  HubRequest request;
  request.url =
      fmt::format("{}/api/{}/revision/{}?blobs=true", options_.endpoint, name.full(), escaped_part(name.revision));
  request.most = kMaxListBytes;
  const HubAnswer answer = TRY(send(request, name, kFactTries));
  const Json json = TRY(parse_json(answer.body, request.url));
  return parse_revision(json, name);
}

Result<> HubClient::look_up(const HubName& name, const std::string& commit, HubFile& file) {
  HubRequest request;
  request.url = file_url(name, commit, file.path);
  request.head = true;
  const HubAnswer answer = TRY(send(request, name, kFactTries));
  const auto either = [&](const char* linked, const char* plain) {
    return answer.header(linked).empty() ? answer.header(plain) : answer.header(linked);
  };
  file.etag = normal_etag(either("x-linked-etag", "etag"));
  file.size = parse_u64(either("x-linked-size", "content-length")).value_or(0);
  if (file.etag.empty())
    return Error{ErrorKind::kData,
                 fmt::format("the hub gives no hash of {}, so the file cannot be checked", quote(file.path)),
                 name.full(), "check HF_ENDPOINT"};
  return {};
}

Result<> HubClient::download(const HubName& name, const std::string& commit, const HubFile& file, const Path& out,
                             const std::function<void(uint64_t)>& bytes_so_far) {
  HubRequest request;
  request.url = file_url(name, commit, file.path);
  request.follow = true;
  request.file = out;
  request.most = file.size;
  request.while_it_runs = [&] {
    std::error_code failed;
    const auto size = std::filesystem::file_size(out, failed);
    if (!failed) bytes_so_far(size);
  };
  if (std::error_code failed; std::filesystem::file_size(out, failed) == file.size && !failed)
    return {};  // whole already
  const HubAnswer answer = TRY(send(request, name, kDownloadTries));
  const uint64_t size = TRY(env_.info(out)).size_bytes;
  if (size == file.size) return {};
  return Error{ErrorKind::kData,
               fmt::format("{} has {} bytes, and the hub names {} (HTTP status {})", quote(file.path), size, file.size,
                           answer.status),
               name.full(), "try again"};
}

}  // namespace mortise
