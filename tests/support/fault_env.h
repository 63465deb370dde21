// FaultEnv: an Env whose changing operations (open for write, append, sync, close, rename, unlink, remove_dir,
// create_dirs, sync_dir) are counted and can be made to fail; reading passes through. Syncing is counted but, unless
// pass_sync is set, not done: a test need not wait for the disk.
//
//   FaultEnv env(default_env());
//   env.fail_at(k);     the k-th operation (1-based) fails once with EIO
//   env.crash_at(k);    from the k-th on nothing is done any more, as after kill -9; a failing append may write half
//   env.disk_full_after(bytes);   appends beyond so many bytes fail with ENOSPC after writing what fits
//   env.full_from(k, ENOSPC, n);  the k-th operation and the n - 1 behind it fail if they need room: opening,
//   appending,
//                                 making folders. Deleting and renaming work
//   env.report_free(bytes);       what free_bytes says, whatever fits
//   env.keep_no_list();           operations() stays empty, so that a long run's memory can be judged
#pragma once

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/forwarding_env.h"

namespace mortise::test {

class FaultEnv final : public ForwardingEnv {
 public:
  explicit FaultEnv(Env& base, bool pass_sync = false) : ForwardingEnv(base), pass_sync_(pass_sync) {}

  void fail_at(int64_t k, int code = EIO) { fail_at_ = k, code_ = code, count_ = 0; }
  void crash_at(int64_t k) { crash_at_ = k, count_ = 0; }
  void disk_full_after(uint64_t bytes) { room_ = bytes, limited_ = true; }
  void full_from(int64_t k, int code, int64_t num_operations = INT64_MAX) {
    full_from_ = k, full_until_ = num_operations > INT64_MAX - k ? INT64_MAX : k + num_operations;
    code_ = code, count_ = 0;
  }
  void keep_no_list() { keeps_list_ = false; }
  void report_free(uint64_t bytes) { reported_free_ = bytes; }
  void heal() { fail_at_ = crash_at_ = full_from_ = 0, limited_ = false, count_ = 0; }
  [[nodiscard]] int64_t num_operations() const { return count_; }
  [[nodiscard]] const std::vector<std::string>& operations() const {
    return operations_;
  }  // "rename /a -> /b", in order

  Result<uint64_t> free_bytes(const Path& path) override {
    if (reported_free_) return *reported_free_;
    return limited_ ? Result<uint64_t>(room_) : base().free_bytes(path);
  }

  Result<std::unique_ptr<WritableFile>> open_for_write(const Path& path, WriteMode mode) override {
    TRY(count("open", path));
    std::unique_ptr<WritableFile> file = TRY(base().open_for_write(path, mode));
    return std::unique_ptr<WritableFile>(new File(this, std::move(file)));
  }
  Result<> rename(const Path& from, const Path& to) override {
    TRY(count("rename", from, to));
    return base().rename(from, to);
  }
  Result<> unlink(const Path& path) override {
    TRY(count("unlink", path));
    return base().unlink(path);
  }
  Result<> remove_dir(const Path& path) override {
    TRY(count("remove_dir", path));
    return base().remove_dir(path);
  }
  Result<> create_dirs(const Path& path) override {
    TRY(count("create_dirs", path));
    return base().create_dirs(path);
  }
  Result<> sync_dir(const Path& path) override {
    TRY(count("sync_dir", path));
    return pass_sync_ ? base().sync_dir(path) : Result<>();
  }

 private:
  class File final : public ForwardingFile {
   public:
    File(FaultEnv* env, std::unique_ptr<WritableFile> file) : ForwardingFile(std::move(file)), env_(env) {}
    Result<> append(std::span<const std::byte> bytes) override {
      const Result<> allowed = env_->count("append", path());
      if (!allowed.ok()) {
        // A failing write may have done half of its work, but a dead process does nothing.
        if (!env_->crashed_before()) (void)ForwardingFile::append(bytes.first(bytes.size() / 2));
        return allowed;
      }
      if (env_->limited_) {
        const size_t fits = bytes.size() < env_->room_ ? bytes.size() : static_cast<size_t>(env_->room_);
        TRY(ForwardingFile::append(bytes.first(fits)));
        env_->room_ -= fits;
        if (fits < bytes.size()) return disk_error(ENOSPC, "write", path());
        return {};
      }
      return ForwardingFile::append(bytes);
    }
    Result<> sync() override {
      TRY(env_->count("sync", path()));
      return env_->pass_sync_ ? ForwardingFile::sync() : Result<>();
    }
    Result<> close() override {
      TRY(env_->count("close", path()));
      return ForwardingFile::close();
    }

   private:
    FaultEnv* env_;
  };

  [[nodiscard]] bool crashed_before() const { return crash_at_ > 0 && count_ > crash_at_; }
  Result<> count(const char* operation, const Path& path, const Path& to = {}) {
    ++count_;
    if (keeps_list_)
      operations_.push_back(std::string(operation) + " " + path.string() + (to.empty() ? "" : " -> " + to.string()));
    if (crash_at_ > 0 && count_ >= crash_at_) return disk_error(EIO, operation, path);
    const std::string_view name = operation;
    const bool needs_room = name == "open" || name == "append" || name == "create_dirs";
    if (full_from_ > 0 && needs_room && count_ >= full_from_ && count_ < full_until_)
      return disk_error(code_, operation, path);
    if (fail_at_ > 0 && count_ == fail_at_) return disk_error(code_, operation, path);
    return {};
  }

  bool pass_sync_;
  int64_t count_ = 0, fail_at_ = 0, crash_at_ = 0, full_from_ = 0, full_until_ = 0;
  int code_ = EIO;
  bool limited_ = false, keeps_list_ = true;
  uint64_t room_ = 0;
  std::optional<uint64_t> reported_free_;
  std::vector<std::string> operations_;
};

}  // namespace mortise::test
