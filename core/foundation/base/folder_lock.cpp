// Takes the flock of a folder or file, and warns if the file system has no locks.
#include "foundation/base/folder_lock.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "foundation/base/log.h"

namespace mortise {

namespace {

enum class Answer { kLocked, kHeldElsewhere, kNoLocks };

Answer lock_file(int fd, const Path& path) {
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return Answer::kHeldElsewhere;
    log_warn(fmt::format(
        "{}: the file system cannot lock it ({}), so nothing keeps a second run from writing here at the same time. "
        "Start only one run in this folder, or use a folder on another file system",
        path.string(), std::strerror(errno)));
    return Answer::kNoLocks;
  }
  return Answer::kLocked;
}

// Whoever had the lock may have renamed or removed the file between our open and our lock.
bool is_still_at(int fd, const Path& file) {
  struct stat opened {
  }, there{};
  return ::fstat(fd, &opened) == 0 && ::stat(file.c_str(), &there) == 0 && opened.st_dev == there.st_dev &&
         opened.st_ino == there.st_ino;
}

}  // namespace

Result<FolderLock> FolderLock::take(const Path& folder) {
  FolderLock lock;
  lock.fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock.fd_ < 0) return lock;
  if (lock_file(lock.fd_, folder) == Answer::kHeldElsewhere) {
    return Error{ErrorKind::kDisk, "another run is writing into this folder", folder.string(),
                 "wait for it, or choose another trainer.default_local_dir"};
  }
  return lock;
}

Result<FolderLock> FolderLock::take_file(const Path& file) {
  while (true) {
    FolderLock lock;
    lock.fd_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (lock.fd_ < 0) return lock;
    const Answer answer = lock_file(lock.fd_, file);
    if (answer == Answer::kHeldElsewhere)
      return Error{ErrorKind::kDisk, "another process is writing this file", file.string(),
                   "wait for it, or name another file"};
    if (answer == Answer::kNoLocks || is_still_at(lock.fd_, file)) return lock;
  }
}

FolderLock::FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace mortise
