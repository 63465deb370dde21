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
  const auto fault = [](int code, const Path& base) {
    Error error = disk_error(code, "make a temporary folder", base);
    error.next = "set TMPDIR to a folder in which you can write";
    return error;
  };
  std::error_code failed;
  const Path base = std::filesystem::temp_directory_path(failed);
  const char* named = std::getenv("TMPDIR");
  if (failed) return fault(failed.value(), named == nullptr ? "/tmp" : named);
  std::string name = (base / (prefix + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) return fault(errno, base);
  return Path(name);
}

}  // namespace mortise
