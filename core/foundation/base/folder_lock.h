// FolderLock: one process at a time may write into a folder, or a file. The lock is the kernel's (flock on the folder
// or file itself): it leaves nothing behind and ends with the process, however it ends. Thread rule: any thread.
#pragma once

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

class FolderLock {
 public:
  // An Error of kind kDisk where another process has it. A file system that knows no locks gives an empty lock.
  static Result<FolderLock> take(const Path& folder);
  // Of a file, which is made where there is none. What cannot be opened gives an empty lock too: who writes it then
  // tells why.
  static Result<FolderLock> take_file(const Path& file);

  FolderLock() = default;
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  int fd_ = -1;
};

}  // namespace mortise
