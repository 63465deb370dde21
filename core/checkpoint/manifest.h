// The manifest of a checkpoint: every file in it with size and SHA-256, and a digest of the manifest itself.
//
//   manifest.json   {
//     "format": "mortise-checkpoint", "version": 1, "step": 120,
//     "update": 2,                                                        inside a step only (place.h)
//     "info": {"mortise": "0.1.0", ...},                                  texts of the writer
//     "entries": [{"path": "state.json", "bytes": 812, "sha256": "..."}], sorted by path
//     "sha256": "..."                                                     of this text with the value left empty
//   }
// Version 2 has the index of a state that several ranks wrote (parts.h); one process writes version 1.
// The text is canonical: the reader refuses a manifest that differs in any byte from what the writer would have written,
// so it finds any flipped bit. Paths are relative, with '/' and without "..", so a hostile manifest reads nothing outside.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/place.h"
#include "foundation/base/result.h"

namespace mortise {

inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr std::string_view kStateIndexFile = "state.safetensors.index.json";  // parts.h shows its form

struct ManifestEntry {
  std::string path;
  uint64_t size_bytes = 0;
  std::string sha256;  // 64 lower-case hex digits
};

struct Manifest {
  CheckpointPlace place;
  std::map<std::string, std::string> info;
  std::vector<ManifestEntry> entries;  // sorted by path

  [[nodiscard]] const ManifestEntry* find(std::string_view path) const;
};

[[nodiscard]] std::string manifest_text(const Manifest& manifest);
Result<Manifest> parse_manifest(std::string_view text, std::string_view where);

// Relative, no empty, "." or ".." parts, no backslash or control character, not longer than the limit.
[[nodiscard]] bool is_safe_entry_path(std::string_view path);

}  // namespace mortise
