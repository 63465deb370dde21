// FolderLock: one process at a time may write into a folder. The lock is the kernel's (flock on the folder itself): it
// leaves no file behind and ends with the process, however it ends. Thread rule: any thread.
#pragma once

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

class FolderLock {
 public:
  // An Error of kind kDisk where another process has it. A file system that knows no locks gives an empty lock.
  static Result<FolderLock> take(const Path& folder);

  FolderLock() = default;
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  int fd_ = -1;
};

}  // namespace mortise
