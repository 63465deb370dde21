// PowerLossEnv: an Env that loses unsynced data like a disk. lose_power(seed) takes back, each with probability one
// half, what was not durable: bytes appended after the last sync() of a file (or the whole file's content), and names
// (new files, renames) in folders without a sync_dir() since then. Deletions always last, which is the worst case for
// code that deletes the old file before the new one is safe. Wrap it in a FaultEnv to stop at a chosen operation first.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "foundation/base/rng.h"
#include "support/forwarding_env.h"

namespace mortise::test {

class PowerLossEnv final : public ForwardingEnv {
 public:
  explicit PowerLossEnv(Env& base) : ForwardingEnv(base) {}

  void lose_power(uint64_t seed) {
    RandomStream random({.seed = seed});
    // From the last change to the first, so that each finds the names as they were right after it.
    while (!names_.empty()) {
      const NameChange change = names_.back();
      names_.pop_back();
      if (random.next_below(2) == 0) continue;
      if (change.from.empty()) {
        (void)remove_tree(base(), change.to);
      } else if (!base().exists(change.from) && base().rename(change.to, change.from).ok()) {
        move_records(change.to, change.from);
        if (change.replaced) (void)write_file(base(), change.to, *change.replaced);
      }
    }
    for (const auto& [path, synced_bytes] : dirty_) {
      if (base().exists(path)) lose_tail(path, synced_bytes, random);
    }
    names_.clear();
    dirty_.clear();
  }

  Result<std::unique_ptr<WritableFile>> open_for_write(const Path& path, WriteMode mode) override {
    if (!base().exists(path)) names_.push_back({{}, path, {}});
    std::unique_ptr<WritableFile> file = TRY(base().open_for_write(path, mode));
    dirty_[path] = TRY(base().info(path)).size_bytes;
    return std::unique_ptr<WritableFile>(new File(this, std::move(file)));
  }
  Result<> rename(const Path& from, const Path& to) override {
    std::optional<std::string> replaced;
    if (const auto info = base().info(to); info.ok() && info->is_file) replaced = TRY(base().read_file(to));
    TRY(base().rename(from, to));
    move_records(from, to);
    names_.push_back({from, to, std::move(replaced)});
    return {};
  }
  Result<> create_dirs(const Path& path) override {
    for (Path at = path; !at.empty() && !base().exists(at); at = at.parent_path()) names_.push_back({{}, at, {}});
    return base().create_dirs(path);
  }
  Result<> sync_dir(const Path& path) override {
    std::erase_if(names_, [&](const NameChange& change) { return change.to.parent_path() == path; });
    return {};
  }

 private:
  struct NameChange {
    Path from;  // empty: a new file or folder
    Path to;
    std::optional<std::string> replaced;  // the bytes of a file that was at `to`
  };
  // Unsynced data may be there, missing, there in part, or zeros: a file system may have made room before it wrote.
  static void lose_tail(const Path& path, uint64_t synced_bytes, RandomStream& random) {
    std::error_code ignored;
    const uint64_t size = std::filesystem::file_size(path, ignored);
    if (size <= synced_bytes) return;
    const uint64_t kept = synced_bytes + random.next_below(size - synced_bytes + 1);
    switch (random.next_below(4)) {
      case 0:
        break;
      case 1:
        std::filesystem::resize_file(path, synced_bytes, ignored);
        break;
      case 2:
        std::filesystem::resize_file(path, kept, ignored);
        break;
      default:
        std::filesystem::resize_file(path, kept, ignored);
        std::filesystem::resize_file(path, size, ignored);
    }
  }
  static Path moved_path(const Path& path, const Path& from, const Path& to) {
    const std::string text = path.string(), prefix = from.string();
    if (text == prefix) return to;
    return text.starts_with(prefix + "/") ? Path(to.string() + text.substr(prefix.size())) : path;
  }
  // The contents of a renamed folder move along.
  void move_records(const Path& from, const Path& to) {
    for (NameChange& change : names_)
      change.to = moved_path(change.to, from, to), change.from = moved_path(change.from, from, to);
    std::map<Path, uint64_t> moved;
    for (const auto& [path, bytes] : dirty_) moved[moved_path(path, from, to)] = bytes;
    dirty_ = std::move(moved);
  }
  class File final : public ForwardingFile {
   public:
    File(PowerLossEnv* env, std::unique_ptr<WritableFile> file) : ForwardingFile(std::move(file)), env_(env) {}
    Result<> sync() override {
      env_->dirty_.erase(path());  // remembered, not done: no test waits for the disk
      return {};
    }

   private:
    PowerLossEnv* env_;
  };

  std::vector<NameChange> names_;
  std::map<Path, uint64_t> dirty_;  // file -> bytes that are safe
};

}  // namespace mortise::test
