// The manifest of a checkpoint. An accepted manifest equals what the writer would write, byte for byte, and none of its
// paths leaves its folder. Each input is read as it is, and again with a correct digest, as a forger would make it.
#include "checkpoint/manifest.h"
#include "foundation/formats/sha256.h"
#include "fuzz/fuzz_support.h"

namespace mortise {
namespace {

void read_manifest(std::string_view text) {
  const auto manifest = parse_manifest(text, "manifest.json");
  if (!manifest.ok()) {
    fuzz::require(!manifest.error().what.empty(), "an error says what");
    return;
  }
  fuzz::require(manifest_text(*manifest) == text, "an accepted manifest is canonical");
  for (const ManifestEntry& entry : manifest->entries) {
    fuzz::require(is_safe_entry_path(entry.path), "paths stay in the folder");
    fuzz::require(manifest->find(entry.path) != nullptr, "every entry is found");
  }
}

}  // namespace

void fuzz::run_one(const uint8_t* data, size_t size) {
  std::string text(as_text(data, size));
  read_manifest(text);
  constexpr std::string_view kKey = "\"sha256\": \"";
  const size_t begin = text.rfind(kKey);
  if (begin == std::string::npos) return;
  const size_t end = text.find('"', begin + kKey.size());
  if (end == std::string::npos) return;
  text.erase(begin + kKey.size(), end - begin - kKey.size());
  text.insert(begin + kKey.size(), sha256_hex(text));
  read_manifest(text);
}

}  // namespace mortise
