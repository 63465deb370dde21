// FileTail: the lines that a program appends to a file, as they come, from any place on.
//
// A place is an offset and a mark of the line before it. If the file was replaced since (a resume drops later rows), the
// mark does not match. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/env.h"

namespace mortise {

struct TailPlace {
  uint64_t offset = 0;  // behind the end of a line; 0: the beginning
  std::string mark;     // digest of the line before; empty at the beginning

  bool operator==(const TailPlace&) const = default;
};

// The place behind a line that begins at `offset` and ends with "\n".
TailPlace place_behind(uint64_t offset, std::string_view line);

// The place behind the last whole line of a text that begins a file.
TailPlace place_behind_lines(std::string_view text);

class FileTail {
 public:
  static constexpr uint64_t kMostBytes = 1 << 20;  // limit of one read

  FileTail(Env& env, Path path, TailPlace place = {}) : env_(&env), path_(std::move(path)), place_(std::move(place)) {}

  // Whole lines behind the place, at most kMostBytes of them or one longer line; the place is then behind them. A file
  // that is missing has none. Nothing: the file is not the one that the place is of, and the place is now its beginning.
  std::optional<std::vector<std::string>> read();
  [[nodiscard]] const TailPlace& place() const { return place_; }

 private:
  [[nodiscard]] bool is_of_file() const;
  [[nodiscard]] std::string read_news(uint64_t file_size) const;

  Env* env_;
  Path path_;
  TailPlace place_;
  bool is_checked_ = false;
  FileInfo seen_;  // what the file was at the last read
};

}  // namespace mortise
