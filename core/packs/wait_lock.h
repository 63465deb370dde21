// The lock of a folder, waited for: two commands at the same time come one after the other.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "foundation/base/folder_lock.h"

namespace mortise {

// `what`: what the folder holds, for the error after 30 seconds. A folder that is not there needs no lock.
inline Result<FolderLock> wait_for_folder(const Path& folder, const std::string& what) {
  constexpr int kTries = 600;
  for (int tries = 1; tries < kTries; ++tries) {
    auto lock = FolderLock::take(folder);
    if (lock.ok()) return lock;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  auto lock = FolderLock::take(folder);
  if (lock.ok()) return lock;
  return Error{ErrorKind::kDisk, "another process has been changing " + what + " for 30 seconds", folder.string(),
               "try again when it is done"};
}

}  // namespace mortise
