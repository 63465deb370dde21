// Env: the operating system behind one interface (files, clock, random bytes), so that a test can stage any failure.
//
// An Error names the path, what the system said, and what to do; its kind is kDisk, or kData where there is nothing to
// read at the path. `default_env()` is the real one (env_posix.cpp); tests/support/fault_env.h wraps it.
// Thread rule: an Env may be called from any thread; a WritableFile from one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/limits.h"
#include "foundation/base/result.h"

namespace mortise {

using Path = std::filesystem::path;

struct FileInfo {
  uint64_t size_bytes = 0;
  int64_t modified_ns = 0;  // since the Unix epoch
  bool is_file = false;     // a regular file (a link is followed)
  bool is_directory = false;
};

// A whole file mapped read-only; the destructor unmaps it. Move-only; the bytes do not move. If another process
// truncates the file while it is mapped, reading the lost pages raises SIGBUS. Map only files that are written once and
// renamed into place.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(Path path, void* address, size_t size_bytes);  // takes the mapping over
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const;
  [[nodiscard]] std::string_view text() const;
  [[nodiscard]] const Path& path() const { return path_; }

 private:
  Path path_;
  void* address_ = nullptr;
  size_t size_bytes_ = 0;
};

// A file being written. The destructor closes it without a word; call close() to learn of a late failure.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual Result<> append(std::span<const std::byte> bytes) = 0;  // all of them, or an error
  virtual Result<> sync() = 0;                                    // data and size are on the disk
  virtual Result<> close() = 0;                                   // idempotent
  [[nodiscard]] virtual const Path& path() const = 0;

  Result<> append_text(std::string_view text) { return append(std::as_bytes(std::span(text.data(), text.size()))); }
};

enum class WriteMode {
  kTruncate,   // create, or empty an existing file
  kAppend,     // create, or append to an existing file
  kExclusive,  // create; an existing file is an error
};

class Env {
 public:
  virtual ~Env() = default;

  // --- reading ---
  // The whole file; one larger than max_bytes is refused before it is read.
  virtual Result<std::string> read_file(const Path& path, uint64_t max_bytes = limits::kMaxTextFileBytes) = 0;
  virtual Result<MappedFile> map_file(const Path& path) = 0;
  virtual Result<FileInfo> info(const Path& path) = 0;
  virtual bool exists(const Path& path) = 0;  // false as well where it cannot be looked at
  // Names (not paths) in a folder, sorted by bytes, without "." and "..".
  virtual Result<std::vector<std::string>> list_dir(const Path& path) = 0;
  virtual Result<uint64_t> free_bytes(const Path& path) = 0;  // space an ordinary user can still write there

  // --- writing ---
  virtual Result<std::unique_ptr<WritableFile>> open_for_write(const Path& path, WriteMode mode) = 0;
  virtual Result<> rename(const Path& from, const Path& to) = 0;  // atomic; replaces a file or an empty folder
  virtual Result<> unlink(const Path& path) = 0;                  // one file or link; it must exist
  virtual Result<> remove_dir(const Path& path) = 0;              // one empty folder
  virtual Result<> create_dirs(const Path& path) = 0;             // with parents; fine if it exists
  virtual Result<> sync_dir(const Path& path) = 0;                // names in this folder are on the disk

  // --- clock and randomness ---
  virtual int64_t wall_time_ns() = 0;  // since the Unix epoch; may jump
  virtual int64_t monotonic_ns() = 0;  // never goes back; for durations and deadlines
  virtual void random_bytes(
      std::span<std::byte> out) = 0;  // from the system; only for names and seeds, never for training
};

// The real operating system. Lives as long as the program.
Env& default_env();

// A folder and all below it, built on list_dir, unlink and remove_dir (links are removed, never followed).
// A path that does not exist is fine.
Result<> remove_tree(Env& env, const Path& path);

// path = these bytes, fsynced. A reader may see a half-written file; use write_file_atomic where one may look.
Result<> write_file(Env& env, const Path& path, std::string_view bytes);

// Temporary file next to it, fsync, rename, fsync of the folder: a reader sees the old or the new content, even after
// power loss.
Result<> write_file_atomic(Env& env, const Path& path, std::string_view bytes);

// A unique name: prefix + 12 hex digits.
std::string unique_name(Env& env, std::string_view prefix);

// An Error of kind kDisk for errno `code` of an operation ("write", "rename") on a path, with the next step for the
// common codes (no space, quota, permission, missing, read-only).
Error disk_error(int code, std::string_view operation, const Path& path);

}  // namespace mortise
