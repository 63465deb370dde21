// Makes, maps and unlinks the files.
#include "foundation/base/file_memory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>

namespace mortise {
namespace {

constexpr const char* kTask = "put memory into a file";

// A descriptor of a new file that has no name any more; -1 with errno.
int open_unnamed(const Path& folder) {
  const int unnamed = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (unnamed >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return unnamed;
  std::string name = (folder / ".offload-XXXXXX").string();  // file systems without O_TMPFILE
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

Result<std::byte*> map_file(int file, const Path& folder, size_t size) {
  struct statfs system {};
  if (::fstatfs(file, &system) == 0 && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC)) {
    return Error{ErrorKind::kConfig, "the folder for offloaded numbers is itself in memory (tmpfs)", folder.string(),
                 "choose a folder on a disk"};
  }
  // Without room a write to the mapping would end the process.
  if (const int failed = ::posix_fallocate(file, 0, static_cast<off_t>(size)); failed != 0)
    return disk_error(failed, kTask, folder);
  void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return disk_error(errno, kTask, folder);
  return static_cast<std::byte*>(data);
}

}  // namespace

Result<FileMemory> FileMemory::create(const Path& folder, size_t size_bytes) {
  const size_t size = std::max<size_t>(size_bytes, 1);
  const int file = open_unnamed(folder);
  if (file < 0) return disk_error(errno, kTask, folder);
  auto data = map_file(file, folder, size);
  ::close(file);  // the mapping keeps the file
  if (!data.ok()) return std::move(data).error();
  return FileMemory(*data, size);
}

FileMemory& FileMemory::operator=(FileMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileMemory::~FileMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

// The mapping is shared, so this only forgets where the pages are: the numbers are in the system's cache or in the file.
void FileMemory::release(std::span<std::byte> pages) { ::madvise(pages.data(), pages.size(), MADV_DONTNEED); }

}  // namespace mortise
