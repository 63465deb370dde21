// RecordFile: a file that grows by whole records, as sinks of metrics write them.
//
// If the disk refuses records, they wait in memory. The next flush then replaces the whole file, because the file may end
// in the middle of a record. If somebody removes the file, a new one takes the next records. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "foundation/base/env.h"

namespace mortise {

class RecordFile {
 public:
  // Adds to the file at `path`, which is made if there is none.
  static Result<RecordFile> open(Env& env, const Path& path, WriteMode mode);
  // A new file, which the first flush puts in the place of what is at `path`.
  static RecordFile in_place_of(Env& env, const Path& path) { return {env, path, nullptr, 0}; }

  void add(std::string_view records) { unwritten_ += records; }
  // Bytes of all records, with those that wait.
  [[nodiscard]] uint64_t size() const { return size_ + unwritten_.size(); }
  Result<> flush();  // all records are in the file
  Result<> sync();   // they are on the disk
  Result<> close();  // the same, and no more come

 private:
  RecordFile(Env& env, const Path& path, std::unique_ptr<WritableFile> file, uint64_t size)
      : env_(&env), path_(path), file_(std::move(file)), size_(size), is_torn_(file_ == nullptr) {}
  Result<> replace_removed();
  Result<> write_again();

  Env* env_;
  Path path_;
  std::unique_ptr<WritableFile> file_;
  uint64_t size_;          // bytes of the records that are in the file whole
  std::string unwritten_;  // records that are not
  bool is_torn_;           // the file may end in a part of a record, or hold records that the disk never got
  bool is_dirty_ = true;   // records came since the last fsync, perhaps from the process before this one
};

}  // namespace mortise
