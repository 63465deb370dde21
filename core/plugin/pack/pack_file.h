// One pack file: opened once, read whole into memory, hashed, audited; loaded later from the same open descriptor.
//
// The bytes are read, not mapped: a build that truncates the file at this moment must not kill the program with SIGBUS.
// Cost: one read and one SHA-256 of the file. Threading: a value; immutable after open.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "foundation/base/result.h"
#include "plugin/pack/pack_info.h"

namespace mortise {

class PackFile {
 public:
  static Result<PackFile> open(const std::filesystem::path& path);
  PackFile(PackFile&& other) noexcept;
  PackFile& operator=(PackFile&& other) noexcept;
  PackFile(const PackFile&) = delete;
  PackFile& operator=(const PackFile&) = delete;
  ~PackFile();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {bytes_.get(), size_}; }
  [[nodiscard]] const std::string& sha256() const { return sha256_; }
  // Uses a sealed copy of bytes() in memory instead of the file, so that later writes to the file, as by a build,
  // change nothing here. An error if the machine or a limit forbids it: nothing else is loaded.
  Result<> seal();
  // Path of the open descriptor, valid for dlopen whatever happens to the name: "/proc/self/fd/7".
  [[nodiscard]] std::string descriptor_path() const;
  // Releases the descriptor without closing it. It stays open for the life of the process.
  void keep_open() { fd_ = -1; }

 private:
  PackFile() = default;
  std::string path_;
  std::string sha256_;
  std::unique_ptr<std::byte[]> bytes_;
  size_t size_ = 0;
  int fd_ = -1;
};

// Note, ELF audit and everything else that can be checked without running code. `host_torch`: "" without libtorch.
[[nodiscard]] Result<PackInfo> inspect_pack(const PackFile& file, std::string_view host_torch = "");
[[nodiscard]] Result<PackInfo> inspect_pack(const std::filesystem::path& path, std::string_view host_torch = "");

}  // namespace mortise
