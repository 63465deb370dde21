// The tar inside an archive: blocks of 512 bytes, written and read in the one form that archive.h describes.
#pragma once

#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "packs/archive.h"
#include "packs/rules.h"

namespace mortise {

inline constexpr size_t kTarBlock = 512;
using TarHeader = std::array<char, kTarBlock>;

// The one header of a file. Precondition: is_archive_path(path), size <= kMaxArchiveFileBytes.
[[nodiscard]] TarHeader tar_header(std::string_view path, uint64_t size);

// Takes the bytes of a tar as they come. `max_bytes` bounds all of them.
class TarReader {
 public:
  TarReader(std::string_view where, const ArchiveVisitor& visitor, uint64_t max_bytes)
      : where_(where), visitor_(visitor), max_bytes_(max_bytes) {}
  Result<> feed(std::string_view bytes);
  Result<> finish();  // after the last byte

 private:
  Result<> read_header();
  Result<> check_path(const std::string& path);
  Result<> end_of_file();
  [[nodiscard]] Error fault(PackRule rule, std::string what) const;

  std::string_view where_;
  const ArchiveVisitor& visitor_;
  uint64_t max_bytes_ = 0;
  uint64_t num_bytes_ = 0;
  std::string block_;  // a header or padding, until it is whole
  ArchiveFile file_;
  bool in_file_ = false;
  bool wanted_ = false;
  uint64_t left_ = 0;   // bytes of the file to come
  size_t padding_ = 0;  // zeros to come
  size_t num_end_blocks_ = 0;
  std::set<std::string> paths_, folders_;
  std::string last_path_;
};

}  // namespace mortise
