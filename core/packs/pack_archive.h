// An archive that was read and checked: its description, and what the notes of its builds say. Nothing of it has run.
//
// Cost: the whole file is in memory, so that the bytes which were checked are the bytes which are installed. Threading:
// a value.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "packs/archive.h"
#include "packs/description.h"

namespace mortise {

struct PackArchive {
  std::string path;  // for messages
  std::string bytes;
  std::string sha256;  // hash of `bytes`
  PackDescription description;
  struct File {
    std::string path;
    uint64_t size = 0;
  };
  std::vector<File> files;
  std::string readme;  // README.md; "" without

  // The files whose paths `wanted` accepts, in order.
  template <class Wanted>
  [[nodiscard]] Result<std::vector<ArchiveFile>> extract(Wanted wanted) const {
    std::vector<ArchiveFile> out;
    TRY(read_archive(bytes, path,
                     {[&](std::string_view name, uint64_t) { return wanted(name); },
                      [&](ArchiveFile&& file) -> Result<> {
                        out.push_back(std::move(file));
                        return {};
                      }}));
    return out;
  }
};

// Rules P1 to P15. `bytes` are those of the file `path`.
Result<PackArchive> check_archive(std::string bytes, std::string path);
// Reads a file on the disk. A file larger than rule P1 allows is refused before it is read.
Result<PackArchive> read_pack_archive(Env& env, const Path& path);

}  // namespace mortise
