// The archive of a pack (.mpack): a tar of regular files in one zstd frame, in one canonical form.
//
// The reader takes only what the writer would have written: it builds the header that belongs to a path and a size, and
// compares all 512 bytes. So there are no links, devices, sparse files, extended headers, modes or times to interpret,
// and no two tar readers can see different contents. `tar --zstd -xf` reads such a file too.
// Same files, same bytes (of one version of libzstd). Limits hold while reading: memory is at most the largest file that
// is taken, a window of 8 MiB and the list of paths. Threading: pure functions. Source: POSIX.1-1988 (ustar).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/limits.h"
#include "foundation/base/result.h"

namespace mortise {

inline constexpr uint64_t kMaxArchiveBytes = 256 * limits::kMiB;
inline constexpr uint64_t kMaxArchiveFileBytes = 256 * limits::kMiB;
inline constexpr uint64_t kMaxUnpackedBytes = 1024 * limits::kMiB;
inline constexpr uint64_t kMaxDescriptionBytes = limits::kMiB;
inline constexpr size_t kMaxArchiveEntries = 4096;
inline constexpr size_t kMaxArchivePathBytes = 100;  // a ustar name without a prefix
inline constexpr std::string_view kDescriptionFile = "pack.toml";

struct ArchiveFile {
  std::string path;
  std::string bytes;
};

// Rule P7. No part is empty, "." or "..".
[[nodiscard]] bool is_archive_path(std::string_view path);

// The archive of these files, in any order; one must be pack.toml. `where` is for errors.
Result<std::string> write_archive(std::vector<ArchiveFile> files, std::string_view where);

struct ArchiveVisitor {
  // Is the file taken? The others are read and checked, but not kept.
  std::function<bool(std::string_view path, uint64_t size)> wants;
  std::function<Result<>(ArchiveFile&&)> take;
};
// Every entry of an archive in order; the first error ends it.
Result<> read_archive(std::string_view archive, std::string_view where, const ArchiveVisitor& visitor);

}  // namespace mortise
