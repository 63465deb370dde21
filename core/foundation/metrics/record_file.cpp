// See record_file.h.
#include "foundation/metrics/record_file.h"

#include "foundation/base/log.h"
#include "foundation/base/rename_target.h"

namespace mortise {

Result<RecordFile> RecordFile::open(Env& env, const Path& path, WriteMode mode) {
  auto file = TRY(env.open_for_write(path, mode));
  const FileInfo info = TRY(env.info(path));
  return RecordFile(env, path, std::move(file), info.size_bytes);
}

Result<> RecordFile::flush() {
  if (unwritten_.empty() && !is_torn_) return {};
  TRY(replace_removed());
  if (is_torn_) return write_again();
  is_dirty_ = true;
  const Result<> written = file_->append_text(unwritten_);
  is_torn_ = !written.ok();
  if (is_torn_) return written;
  size_ += unwritten_.size();
  unwritten_.clear();
  return {};
}

Result<> RecordFile::sync() {
  TRY(flush());
  if (!is_dirty_) return {};
  Result<> synced = file_->sync();
  is_dirty_ = !synced.ok();
  // The system forgets what a failed fsync could not write, so only a new file is safe.
  if (!synced.ok()) is_torn_ = true;
  return synced;
}

Result<> RecordFile::close() {
  TRY(sync());
  return file_->close();
}

// Without it, records would go to a file that no folder has any more.
Result<> RecordFile::replace_removed() {
  if (file_ == nullptr || env_->exists(path_)) return {};
  auto file = TRY(env_->open_for_write(path_, WriteMode::kAppend));
  const FileInfo info = TRY(env_->info(path_));
  file_ = std::move(file);
  if (info.size_bytes > 0) return {};  // it is there, and only could not be looked at for a moment
  log_warn_once(
      path_.string() +
      " was removed or renamed while the run writes it. A new file takes the next rows, without those so far");
  size_ = 0;
  is_torn_ = false;
  is_dirty_ = true;
  return {};
}

// A long run has many records, so the old file is mapped and not read.
Result<> RecordFile::write_again() {
  const Path target = TRY(rename_target(*env_, path_)).value_or(path_);
  MappedFile old;
  if (size_ > 0) old = TRY(env_->map_file(path_));
  const auto write_records = [&](WritableFile& file) -> Result<> {
    TRY(file.append_text(old.text().substr(0, size_)));
    return file.append_text(unwritten_);
  };
  TRY(write_whole(*env_, target, write_records));
  file_ = TRY(env_->open_for_write(path_, WriteMode::kAppend));
  size_ += unwritten_.size();
  unwritten_.clear();
  is_torn_ = is_dirty_ = false;
  return {};
}

}  // namespace mortise
