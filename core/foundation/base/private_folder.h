// A temporary folder that no other user of the machine can enter, whatever the umask is.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

// The caller removes it.
inline Result<Path> make_private_folder(const std::string& prefix) {
  std::error_code failed;
  const Path base = std::filesystem::temp_directory_path(failed);
  std::string name = (base / (prefix + "XXXXXX")).string();
  if (failed) return disk_error(failed.value(), "find the folder of temporary files", base);
  if (::mkdtemp(name.data()) == nullptr) return disk_error(errno, "make a temporary folder", base);
  return Path(name);
}

}  // namespace mortise
