// Makes and checks the 512-byte headers of a tar.
#include "packs/tar_blocks.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr const char* kBuildAgain = "build the archive again with `mortise pack build`";

// Fields of a ustar header: where they begin and how long they are.
constexpr size_t kSizeAt = 124, kSizeBytes = 12, kSumAt = 148, kTypeAt = 156;

void put(TarHeader& header, size_t at, std::string_view text) {
  std::memcpy(header.data() + at, text.data(), text.size());
}

std::string octal(uint64_t value, int digits) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%0*llo", digits, static_cast<unsigned long long>(value));
  return text.data();
}

std::string_view type_name(char type) {
  switch (type) {
    case '1':
      return "a hard link";
    case '2':
      return "a symbolic link";
    case '3':
    case '4':
      return "a device";
    case '5':
      return "a folder";
    case '6':
      return "a pipe";
    case 'S':
      return "a sparse file";
    case 'x':
    case 'g':
    case 'L':
    case 'K':
      return "an extended header";
    default:
      return "no regular file";
  }
}

std::optional<uint64_t> read_octal(std::string_view field) {
  if (field.back() != '\0') return std::nullopt;
  uint64_t value = 0;
  for (const char digit : field.substr(0, field.size() - 1)) {
    if (digit < '0' || digit > '7') return std::nullopt;
    value = value * 8 + static_cast<uint64_t>(digit - '0');
  }
  return value;
}

bool all_zero(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == '\0'; });
}

}  // namespace

TarHeader tar_header(std::string_view path, uint64_t size) {
  TarHeader header{};
  put(header, 0, path);
  put(header, 100, "0000644");
  put(header, 108, "0000000");  // owner
  put(header, 116, "0000000");  // group
  put(header, kSizeAt, octal(size, 11));
  put(header, 136, "00000000000");  // time
  put(header, kSumAt, "        ");  // counts as spaces in the sum
  header[kTypeAt] = '0';
  put(header, 257, std::string_view("ustar\00000", 8));
  uint64_t sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  put(header, kSumAt, octal(sum, 6) + std::string("\0 ", 2));
  return header;
}

Error TarReader::fault(PackRule rule, std::string what) const {
  return broken_rule(rule, std::move(what), where_, kBuildAgain);
}

Result<> TarReader::check_path(const std::string& path) {
  if (!is_archive_path(path)) return fault(PackRule::kPath, fmt::format("the path {} is not allowed", quote(path)));
  if (paths_.empty() && path != kDescriptionFile)
    return fault(PackRule::kFirst, fmt::format("the first entry is {}, not pack.toml", quote(path)));
  if (!paths_.insert(path).second)
    return fault(PackRule::kOrder, fmt::format("the path {} is there twice", quote(path)));
  if (path != kDescriptionFile) {
    if (!last_path_.empty() && path < last_path_)
      return fault(PackRule::kOrder, fmt::format("{} comes after {}", quote(path), quote(last_path_)));
    last_path_ = path;
  }
  const auto is_both = [&](const std::string& both) {
    return fault(PackRule::kOrder, quote(both) + " is both a file and a folder");
  };
  if (folders_.count(path) != 0) return is_both(path);
  for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    std::string folder = path.substr(0, slash);
    if (paths_.count(folder) != 0) return is_both(folder);
    folders_.insert(std::move(folder));
  }
  return {};
}

Result<> TarReader::read_header() {
  if (all_zero(block_)) {
    ++num_end_blocks_;
    return {};
  }
  if (num_end_blocks_ > 0) return fault(PackRule::kEnd, "there is something after the end of the archive");
  if (paths_.size() == kMaxArchiveEntries)
    return fault(PackRule::kEntryCount, fmt::format("there are more than {} entries", kMaxArchiveEntries));
  const char type = block_[kTypeAt];
  std::string path = block_.substr(0, std::min(block_.find('\0'), kMaxArchivePathBytes));
  if (type != '0')
    return fault(PackRule::kEntryType, fmt::format("{} is {}", quote(path), std::string(type_name(type))));
  const auto size = read_octal(std::string_view(block_).substr(kSizeAt, kSizeBytes));
  if (!size) return fault(PackRule::kHeader, fmt::format("the size of {} is not 11 octal digits", quote(path)));
  TRY(check_path(path));
  if (*size > kMaxArchiveFileBytes)
    return fault(PackRule::kUnpackedSize, fmt::format("{} has {}, more than {}", quote(path), format_bytes(*size),
                                                      format_bytes(kMaxArchiveFileBytes)));
  if (path == kDescriptionFile && *size > kMaxDescriptionBytes)
    return fault(PackRule::kFirst, fmt::format("pack.toml has {}, more than {}", format_bytes(*size),
                                               format_bytes(kMaxDescriptionBytes)));
  const TarHeader expected = tar_header(path, *size);
  if (block_ != std::string_view(expected.data(), expected.size()))
    return fault(PackRule::kHeader,
                 fmt::format("the header of {} is not the one that belongs to its path and size", quote(path)));
  file_ = {std::move(path), ""};
  in_file_ = true;
  wanted_ = visitor_.wants(file_.path, *size);
  left_ = *size;
  padding_ = static_cast<size_t>((kTarBlock - *size % kTarBlock) % kTarBlock);
  return {};
}

Result<> TarReader::end_of_file() {
  in_file_ = false;
  if (wanted_) TRY(visitor_.take(std::move(file_)));
  file_ = {};
  return {};
}

Result<> TarReader::feed(std::string_view bytes) {
  num_bytes_ += bytes.size();
  if (num_bytes_ > max_bytes_)
    return fault(PackRule::kUnpackedSize, fmt::format("the files have more than {} in all", format_bytes(max_bytes_)));
  while (!bytes.empty() || (in_file_ && left_ == 0 && padding_ == 0)) {
    if (in_file_ && left_ > 0) {
      const size_t count = std::min<uint64_t>(left_, bytes.size());
      if (wanted_) file_.bytes.append(bytes.substr(0, count));
      left_ -= count;
      bytes.remove_prefix(count);
    } else if (in_file_ && padding_ > 0) {
      const size_t count = std::min(padding_, bytes.size());
      if (!all_zero(bytes.substr(0, count)))
        return fault(PackRule::kHeader, fmt::format("the padding after {} is not zero", quote(file_.path)));
      padding_ -= count;
      bytes.remove_prefix(count);
    } else if (in_file_) {
      TRY(end_of_file());
    } else {
      const size_t count = std::min(kTarBlock - block_.size(), bytes.size());
      block_.append(bytes.substr(0, count));
      bytes.remove_prefix(count);
      if (block_.size() < kTarBlock) break;
      if (num_end_blocks_ == 2) return fault(PackRule::kEnd, "there is something after the end of the archive");
      TRY(read_header());
      block_.clear();
    }
  }
  return {};
}

Result<> TarReader::finish() {
  if (in_file_) return fault(PackRule::kEnd, "the archive ends inside " + quote(file_.path));
  if (!block_.empty() || num_end_blocks_ != 2)
    return fault(PackRule::kEnd, "the archive does not end with two blocks of zeros");
  return {};
}

}  // namespace mortise
