// FolderLock: one process at a time may write into a folder, or a file. The lock is the kernel's (flock on the folder
// or file itself): it leaves nothing behind and ends with the process, however it ends. Thread rule: any thread.
#pragma once

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

class FolderLock {
 public:
  // An Error of kind kDisk if another process has it. If the file system cannot lock, a warning says so, and the lock
  // excludes no other process.
  static Result<FolderLock> take(const Path& folder);
  // The same for a file, which is created if it is missing. A file that cannot be opened gives an empty lock: writing
  // it then fails with the reason.
  static Result<FolderLock> take_file(const Path& file);

  FolderLock() = default;
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  int fd_ = -1;
};

}  // namespace mortise
