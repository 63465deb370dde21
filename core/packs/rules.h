// The rules that a pack's archive, description and signature keep, by number. docs/packs.md lists them.
//
// A refusal names its rule, so that whoever made the archive can look it up: "... (rule P7)". Threading: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "foundation/base/result.h"

namespace mortise {

enum class PackRule : int {
  kFileSize = 1,      // the archive has at most 256 MiB
  kFrame = 2,         // exactly one zstd frame, with its checksum, and nothing after it
  kEntryCount = 3,    // at most 4,096 entries
  kUnpackedSize = 4,  // at most 256 MiB for one file, 1 GiB for all, and 16 MiB + 64 times the archive's size
  kEntryType = 5,     // regular files only
  kHeader = 6,        // each header is the one that `mortise pack build` writes, and padding is zero
  kPath = 7,          // a relative path of at most 100 bytes, in parts of [A-Za-z0-9._+-]
  kOrder = 8,         // paths are sorted, each is there once, and none is also a folder
  kEnd = 9,           // two blocks of zeros end the archive, and nothing follows
  kFirst = 10,        // pack.toml is the first entry and has at most 1 MiB
  kDescription = 11,  // pack.toml is TOML with known keys of the right types
  kId = 12,           // the id is dotted words of [a-z0-9_-]; mortise.* is kept for the program's own packs
  kVersion = 13,      // the version is a semantic one
  kBuild = 14,        // the files in lib/ are those of the builds, with their size and SHA-256
  kPlugins = 15,      // the plugin tables are those of every build's note
  kSignature = 16,    // the signature is a minisign signature of exactly these bytes
  kOwner = 17,        // its key is trusted for the pack's id
  kRevoked = 18,      // neither the key nor the pack is revoked
  kComment = 19,      // the signed comment names no other pack
  kIndex = 20,        // an index is signed by a trusted key of each id that it lists
  kRollback = 21,     // an index is not older than the one that was seen last
  kFreeze = 22,       // an index has not expired
  kTarget = 23,       // a file is the one that the index, the lock or the store names
  kTransfer = 24,     // a download keeps its limits on size and time
  kThreshold = 25,    // as many keys signed as their publisher needs
};

[[nodiscard]] inline Error broken_rule(PackRule rule, std::string what, std::string_view where, std::string next) {
  what += " (rule P" + std::to_string(static_cast<int>(rule)) + ")";
  return {ErrorKind::kPlugin, std::move(what), std::string(where), std::move(next)};
}

}  // namespace mortise
