// Reads names of the hub.
#include "hub/hub_name.h"

#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr std::string_view kScheme = "hf://";
constexpr std::string_view kDatasets = "datasets/";
constexpr size_t kMaxRepoName = 96;  // huggingface_hub's limit

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

// One part of a repository's name, by the rules of huggingface_hub's validate_repo_id.
bool is_name_part(std::string_view part) {
  return !part.empty() && std::ranges::all_of(part, is_name_character) && part.find("--") == std::string_view::npos &&
         part.find("..") == std::string_view::npos && part.front() != '-' && part.front() != '.' &&
         part.back() != '-' && part.back() != '.';
}

// It becomes a part of URLs and of paths in the cache.
bool is_revision(std::string_view revision) {
  if (revision.empty() || revision.size() > 200 || revision.front() == '/' || revision.back() == '/') return false;
  for (const std::string_view part : split(revision, '/')) {
    if (part.empty() || part.find("..") != std::string_view::npos || part.front() == '.') return false;
    if (!std::ranges::all_of(part, [](char c) { return is_name_character(c) || c == '+'; })) return false;
  }
  return true;
}

Error bad_name(const std::string& text, const std::string& what, HubKind kind) {
  return {
      ErrorKind::kConfig, fmt::format("{} is not a name of the hub: {}", quote(text), what), "",
      kind == HubKind::kModel
          ? "write hf://ORGANISATION/NAME or hf://ORGANISATION/NAME@REVISION"
          : "write hf://datasets/ORGANISATION/NAME/PATH, as in hf://datasets/HuggingFaceH4/aime_2024/default/train"};
}

// Cuts the revision off `rest`, which begins after "@". Revisions of the form refs/pr/3 and refs/convert/parquet have
// slashes; all others end at the first one.
std::string take_revision(std::string& rest) {
  size_t end = rest.find('/');
  if (rest.starts_with("refs/")) {
    for (int slashes = 1; slashes < 3 && end != std::string::npos; ++slashes) end = rest.find('/', end + 1);
  }
  std::string revision = rest.substr(0, end);
  rest = end == std::string::npos ? "" : rest.substr(end);
  for (size_t at = 0; (at = revision.find("%2F", at)) != std::string::npos;) revision.replace(at, 3, "/");
  return revision;
}

Result<HubName> parse_name(const std::string& text, std::string rest, HubKind kind) {
  HubName name;
  name.kind = kind;
  const size_t slash = rest.find('/');
  if (slash == std::string::npos) return bad_name(text, "it names no organisation", kind);
  const size_t end = std::min(rest.find_first_of("/@", slash + 1), rest.size());
  name.repo = rest.substr(0, end);
  rest = rest.substr(end);
  if (name.repo.size() > kMaxRepoName || !is_name_part(name.repo.substr(0, slash)) ||
      !is_name_part(name.repo.substr(slash + 1))) {
    return bad_name(text, "letters, digits, '-', '_' and '.' are allowed, 96 at most", kind);
  }
  if (rest.starts_with("@")) {
    rest.erase(0, 1);
    name.revision = take_revision(rest);
    if (!is_revision(name.revision)) return bad_name(text, "the revision after '@' is wrong", kind);
  }
  while (rest.starts_with("/")) rest.erase(0, 1);
  while (rest.ends_with("/")) rest.pop_back();
  if (kind == HubKind::kModel && !rest.empty()) return bad_name(text, "a model is named without a path in it", kind);
  name.path = std::move(rest);
  return name;
}

bool could_be_model(Env& env, const std::string& text) {
  if (std::ranges::count(text, '/') != 1 || text.front() == '/' || text.front() == '.' || text.front() == '~')
    return false;
  return !env.exists(text) && !env.exists(text.substr(0, text.find('/')));
}

}  // namespace

std::string HubName::full() const { return (kind == HubKind::kModel ? "models/" : "datasets/") + repo; }

bool is_commit(std::string_view revision) {
  return revision.size() == 40 &&
         std::ranges::all_of(revision, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Result<std::optional<HubName>> find_hub_name(Env& env, const std::string& text, HubKind kind) {
  if (!text.starts_with(kScheme)) {
    if (kind != HubKind::kModel || text.empty() || !could_be_model(env, text)) return std::optional<HubName>();
    const auto name = parse_name(text, text, kind);
    return name.ok() ? std::optional(*name) : std::nullopt;  // another odd path of this machine
  }
  std::string rest = text.substr(kScheme.size());
  const bool is_dataset = rest.starts_with(kDatasets);
  if (is_dataset != (kind == HubKind::kDataset)) {
    return bad_name(text, kind == HubKind::kModel ? "a data set is not a model" : "a model has no rows", kind);
  }
  if (is_dataset) rest.erase(0, kDatasets.size());
  return std::optional(TRY(parse_name(text, std::move(rest), kind)));
}

}  // namespace mortise
