// Files of an index: from a folder, or over https by the program mortise-fetch, which alone links libcurl. So TLS and
// HTTP are parsed in a process of its own, with a limit on time that ends it, whatever the server does.
//
// http is for this machine alone (127.0.0.1, [::1], localhost). Redirects are not followed. Threading: one thread each.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

struct FetchOptions {
  Path program;                                  // mortise-fetch
  std::chrono::milliseconds slow_after{20'000};  // less than 1 KiB a second for so long ends a transfer
  std::chrono::milliseconds at_most{600'000};    // for one file
};
// Next to this program.
[[nodiscard]] FetchOptions default_fetch_options();

class FileSource {
 public:
  virtual ~FileSource() = default;
  // The file of this name in the index; at most so many bytes (rule P24). `missing` is set where there is no such file.
  virtual Result<std::string> get(const std::string& name, uint64_t max_bytes, bool* missing = nullptr) = 0;
};

// `place`: a folder, or a URL with or without a slash at its end.
Result<std::unique_ptr<FileSource>> open_source(Env& env, const std::string& place, const FetchOptions& options);

[[nodiscard]] bool is_url(const std::string& place);

// The one spelling of a place: what is remembered of an index is found again however its address is written. A folder
// is absolute. A URL has its scheme and host in small letters, and no default port, final dot, empty part or part ".".
Result<std::string> normal_place(const std::string& place);

}  // namespace mortise
