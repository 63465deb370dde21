// What every Env shares: mapped files, disk errors in words, and the small compositions of single operations.
#include "foundation/base/env.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "foundation/base/rename_target.h"

namespace mortise {

MappedFile::MappedFile(Path path, void* address, size_t size_bytes)
    : path_(std::move(path)), address_(address), size_bytes_(size_bytes) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      address_(std::exchange(other.address_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(address_, other.address_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (address_ != nullptr) munmap(address_, size_bytes_);
}

std::span<const std::byte> MappedFile::bytes() const { return {static_cast<const std::byte*>(address_), size_bytes_}; }

std::string_view MappedFile::text() const { return {static_cast<const char*>(address_), size_bytes_}; }

Error disk_error(int code, std::string_view operation, const Path& path) {
  std::string next;
  switch (code) {
    case ENOSPC:
      next = "the disk is full: free some space, or choose another folder";
      break;
    case EDQUOT:
      next = "your quota on this disk is used up: delete files, or choose another folder";
      break;
    case EFBIG:
      next = "the file would be larger than this process may write: raise `ulimit -f`";
      break;
    case EACCES:
    case EPERM:
      next = "check who owns it and its permissions";
      break;
    case ENOENT:
      next = "check the path";
      break;
    case EROFS:
      next = "this disk is read-only: choose another folder";
      break;
    case EMFILE:
    case ENFILE:
      next = "too many files are open: raise `ulimit -n`";
      break;
    case ENOTDIR:
      next = "a part of this path is a file, not a folder";
      break;
    case EISDIR:
      next = "give a file instead of a folder";
      break;
    case EIO:
      next = "the disk reports a fault: look at `dmesg`";
      break;
    default:
      break;
  }
  // strerror_r's two forms differ by libc; the table lookup of strerrordesc_np is thread-safe and has one.
  const char* text = strerrordesc_np(code);
  std::string what = fmt::format("cannot {}: ", operation);
  what += text != nullptr ? text : "error " + std::to_string(code);
  return {ErrorKind::kDisk, std::move(what), path.string(), std::move(next)};
}

Result<> remove_tree(Env& env, const Path& path) {
  // A link counts as a file here: unlink comes first, and only a real folder is entered.
  if (env.unlink(path).ok()) return {};
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(path, ignored);
  if (status.type() == std::filesystem::file_type::not_found) return {};
  if (status.type() != std::filesystem::file_type::directory) return env.unlink(path);
  for (const std::string& name : TRY(env.list_dir(path))) TRY(remove_tree(env, path / name));
  return env.remove_dir(path);
}

Result<> write_file(Env& env, const Path& path, std::string_view bytes) {
  const auto file = TRY(env.open_for_write(path, WriteMode::kTruncate));
  TRY(file->append_text(bytes));
  TRY(file->sync());
  return file->close();
}

Result<> write_file_atomic(Env& env, const Path& path, std::string_view bytes) {
  const auto target = TRY(rename_target(env, path));
  if (!target) {
    const auto file = TRY(env.open_for_write(path, WriteMode::kTruncate));
    TRY(file->append_text(bytes));
    return file->close();
  }
  return write_whole(env, *target, [&](WritableFile& file) { return file.append_text(bytes); });
}

std::string unique_name(Env& env, std::string_view prefix) {
  std::array<std::byte, 6> bytes{};
  env.random_bytes(bytes);
  std::string name(prefix);
  for (const std::byte byte : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    name += kDigits[std::to_integer<size_t>(byte) >> 4];
    name += kDigits[std::to_integer<size_t>(byte) & 15];
  }
  return name;
}

}  // namespace mortise
