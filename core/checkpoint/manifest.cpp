// See manifest.h, which draws the format.
#include "checkpoint/manifest.h"

#include <fmt/core.h>
#include <algorithm>

#include "foundation/base/limits.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "foundation/formats/sha256.h"

namespace mortise {
namespace {

constexpr std::string_view kFormat = "mortise-checkpoint";
constexpr int64_t kVersion = 1;
constexpr int64_t kSpreadVersion = 2;  // a program that reads 1 alone does not know the index

int64_t version_of(const Manifest& manifest) {
  return manifest.find(kStateIndexFile) == nullptr ? kVersion : kSpreadVersion;
}

std::string text_with_digest(const Manifest& manifest, std::string_view digest) {
  Json entries = Json::array();
  for (const ManifestEntry& entry : manifest.entries)
    entries.push_back(Json{{"path", entry.path}, {"bytes", entry.size_bytes}, {"sha256", entry.sha256}});
  Json root{{"format", kFormat}, {"version", version_of(manifest)}, {"step", manifest.place.step}};
  if (manifest.place.update) root["update"] = *manifest.place.update;
  root["info"] = manifest.info;
  root["entries"] = std::move(entries);
  root["sha256"] = digest;
  return dump_json(root, 1) + "\n";
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Error damaged(std::string what, std::string_view where) {
  return {ErrorKind::kData, "manifest: " + std::move(what), std::string(where),
          "this checkpoint is damaged: use another one"};
}

Result<ManifestEntry> read_entry(const Json& value, std::string_view where) {
  ManifestEntry entry;
  entry.path = TRY(json_string(value, "path", where));
  entry.size_bytes = static_cast<uint64_t>(TRY(json_int(value, "bytes", where)));
  entry.sha256 = TRY(json_string(value, "sha256", where));
  if (!is_safe_entry_path(entry.path)) return damaged(fmt::format("path {} is not allowed", quote(entry.path)), where);
  if (!is_sha256(entry.sha256)) return damaged(fmt::format("entry {} has no SHA-256", quote(entry.path)), where);
  return entry;
}

}  // namespace

const ManifestEntry* Manifest::find(std::string_view path) const {
  const auto at =
      std::lower_bound(entries.begin(), entries.end(), path,
                       [](const ManifestEntry& entry, std::string_view wanted) { return entry.path < wanted; });
  return at != entries.end() && at->path == path ? &*at : nullptr;
}

bool is_safe_entry_path(std::string_view path) {
  if (path.empty() || path.size() > limits::kMaxPathBytes || find_invalid_utf8(path)) return false;
  const auto bad = [](unsigned char c) { return c < 0x20 || c == 0x7F || c == '\\'; };
  if (std::any_of(path.begin(), path.end(), bad)) return false;
  for (const std::string_view part : split(path, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

std::string manifest_text(const Manifest& manifest) {
  return text_with_digest(manifest, sha256_hex(text_with_digest(manifest, "")));
}

Result<Manifest> parse_manifest(std::string_view text, std::string_view where) {
  const Json root = TRY(parse_json(text, where));
  const std::string format = TRY(json_string(root, "format", where));
  if (format != kFormat) return damaged("format is " + quote(format), where);
  if (const int64_t version = TRY(json_int(root, "version", where)); version < kVersion || version > kSpreadVersion)
    return Error{ErrorKind::kData,
                 fmt::format("this checkpoint has format version {}, this program reads {} to {}", version, kVersion,
                             kSpreadVersion),
                 std::string(where), "use the version of mortise that wrote it"};
  Manifest manifest;
  manifest.place.step = TRY(json_int(root, "step", where));
  if (json_find(root, "update") != nullptr) manifest.place.update = TRY(json_int(root, "update", where));
  const Json* info = json_find(root, "info");
  const Json* entries = json_find(root, "entries");
  // An empty map is written as null by the library; both say "nothing".
  if (info == nullptr || !(info->is_object() || info->is_null())) return damaged("'info' is missing", where);
  if (info->is_object()) {
    for (const auto& [key, value] : info->get_ref<const Json::object_t&>()) {
      if (!value.is_string()) return damaged("'info' has a value that is not a text", where);
      manifest.info.emplace(key, value.get_ref<const std::string&>());
    }
  }
  if (entries == nullptr || !entries->is_array() || entries->size() > limits::kMaxManifestEntries)
    return damaged("'entries' is missing or too long", where);
  for (const Json& value : *entries) manifest.entries.push_back(TRY(read_entry(value, where)));
  for (size_t i = 1; i < manifest.entries.size(); ++i) {
    if (!(manifest.entries[i - 1].path < manifest.entries[i].path))
      return damaged(fmt::format("entry {} is out of order or appears twice", quote(manifest.entries[i].path)), where);
  }
  // Canonical text: this also checks the digest, and leaves no room for members we did not look at.
  if (manifest_text(manifest) != text) return damaged("its digest does not match, so the file was changed", where);
  return manifest;
}

}  // namespace mortise
