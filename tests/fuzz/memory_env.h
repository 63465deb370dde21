// A read-only Env with its files in memory, for fuzz targets. No input can reach the disk. Thread rule: one thread.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "foundation/base/env.h"

namespace mortise::fuzz {

class MemoryEnv : public Env {
 public:
  void add(const std::string& path, std::string content) { files_[path] = std::move(content); }

  Result<std::string> read_file(const Path& path, uint64_t max_bytes) override {
    const auto it = files_.find(path.string());
    if (it == files_.end()) return disk_error(ENOENT, "open", path);
    if (it->second.size() > max_bytes) return disk_error(EFBIG, "read", path);
    return it->second;
  }
  Result<MappedFile> map_file(const Path& path) override {
    const auto it = files_.find(path.string());
    if (it == files_.end()) return disk_error(ENOENT, "open", path);
    const size_t size = it->second.size();
    if (size == 0) return MappedFile(path, nullptr, 0);
    // Its own mapping, so that MappedFile can unmap it. A read far past the end hits an unmapped page.
    void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return disk_error(errno, "map", path);
    std::memcpy(address, it->second.data(), size);
    return MappedFile(path, address, size);
  }
  Result<FileInfo> info(const Path& path) override {
    const auto it = files_.find(path.string());
    if (it == files_.end()) return disk_error(ENOENT, "stat", path);
    return FileInfo{.size_bytes = it->second.size(), .is_file = true};
  }
  bool exists(const Path& path) override { return files_.contains(path.string()); }
  Result<std::vector<std::string>> list_dir(const Path& path) override {
    std::vector<std::string> names;
    for (const auto& [name, content] : files_) {
      if (Path(name).parent_path() == path) names.push_back(Path(name).filename().string());
    }
    return names;
  }
  Result<uint64_t> free_bytes(const Path&) override { return 0; }

  Result<std::unique_ptr<WritableFile>> open_for_write(const Path& path, WriteMode) override { return read_only(path); }
  Result<> rename(const Path& from, const Path&) override { return read_only(from); }
  Result<> unlink(const Path& path) override { return read_only(path); }
  Result<> remove_dir(const Path& path) override { return read_only(path); }
  Result<> create_dirs(const Path& path) override { return read_only(path); }
  Result<> sync_dir(const Path& path) override { return read_only(path); }

  int64_t wall_time_ns() override { return 0; }
  int64_t monotonic_ns() override { return 0; }
  void random_bytes(std::span<std::byte> out) override { std::memset(out.data(), 0, out.size()); }

 private:
  static Error read_only(const Path& path) { return disk_error(EROFS, "write", path); }

  std::map<std::string, std::string> files_;
};

}  // namespace mortise::fuzz
