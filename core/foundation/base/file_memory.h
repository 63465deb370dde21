// FileMemory: memory whose numbers lie in a file without a name. The system can write its pages out and take them back,
// so that it needs no memory while nothing reads it; the file goes with the process, whatever ends it.
//
// Cost: the first use of a page after release() is a page fault, which reads the disk if the system has taken the page.
// An I/O error of the disk then ends the process with SIGBUS, as for every mapped file.
// Thread rule: release() may be called from any thread, also while others use the memory.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

class FileMemory {
 public:
  // Zeros. The room on the disk is taken at once. `folder` exists; one that is itself in memory (tmpfs) is refused.
  static Result<FileMemory> create(const Path& folder, size_t size_bytes);
  FileMemory(FileMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  FileMemory& operator=(FileMemory&& other) noexcept;
  FileMemory(const FileMemory&) = delete;
  FileMemory& operator=(const FileMemory&) = delete;
  ~FileMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }
  // This process keeps none of these pages of such memory. The numbers stay. `pages` begins at a page.
  static void release(std::span<std::byte> pages);

 private:
  FileMemory(std::byte* data, size_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  size_t size_ = 0;  // at least 1
};

}  // namespace mortise
