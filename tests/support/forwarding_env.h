// An Env, and a file of one, that pass every call on: a test derives from them and overrides what it watches or breaks.
// Thread rule: as the Env behind it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "foundation/base/env.h"

namespace mortise::test {

class ForwardingFile : public WritableFile {
 public:
  explicit ForwardingFile(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  Result<> append(std::span<const std::byte> bytes) override { return file_->append(bytes); }
  Result<> sync() override { return file_->sync(); }
  Result<> close() override { return file_->close(); }
  [[nodiscard]] const Path& path() const override { return file_->path(); }

 private:
  std::unique_ptr<WritableFile> file_;
};

class ForwardingEnv : public Env {
 public:
  explicit ForwardingEnv(Env& base) : base_(&base) {}

  Result<std::string> read_file(const Path& path, uint64_t max_bytes) override {
    return base_->read_file(path, max_bytes);
  }
  Result<MappedFile> map_file(const Path& path) override { return base_->map_file(path); }
  Result<FileInfo> info(const Path& path) override { return base_->info(path); }
  bool exists(const Path& path) override { return base_->exists(path); }
  Result<std::vector<std::string>> list_dir(const Path& path) override { return base_->list_dir(path); }
  Result<uint64_t> free_bytes(const Path& path) override { return base_->free_bytes(path); }
  Result<std::unique_ptr<WritableFile>> open_for_write(const Path& path, WriteMode mode) override {
    return base_->open_for_write(path, mode);
  }
  Result<> rename(const Path& from, const Path& to) override { return base_->rename(from, to); }
  Result<> unlink(const Path& path) override { return base_->unlink(path); }
  Result<> remove_dir(const Path& path) override { return base_->remove_dir(path); }
  Result<> create_dirs(const Path& path) override { return base_->create_dirs(path); }
  Result<> sync_dir(const Path& path) override { return base_->sync_dir(path); }
  int64_t wall_time_ns() override { return base_->wall_time_ns(); }
  int64_t monotonic_ns() override { return base_->monotonic_ns(); }
  void random_bytes(std::span<std::byte> out) override { base_->random_bytes(out); }

 protected:
  [[nodiscard]] Env& base() const { return *base_; }

 private:
  Env* base_;
};

}  // namespace mortise::test
