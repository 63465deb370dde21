// metrics.jsonl and updates.jsonl. See sinks.h.
#include <cmath>
#include <string_view>

#include "foundation/base/rename_target.h"
#include "foundation/formats/json.h"
#include "foundation/metrics/sinks.h"

namespace mortise {
namespace {

class JsonlSink final : public MetricSink {
 public:
  JsonlSink(Env& env, std::unique_ptr<WritableFile> file, uint64_t size)
      : env_(&env), file_(std::move(file)), size_(size) {}

  Result<> write(const MetricRow& row) override {
    Json object = Json::object();
    for (const auto& [key, value] : row.keys) object[key] = value;
    // A whole number is still a float here, so that a column keeps one type.
    for (const MetricValue& metric : row.values) {
      if (std::isfinite(metric.value))
        object[metric.name] = metric.value;
      else
        object[metric.name] = nullptr;
    }
    unwritten_ += dump_json(object) + "\n";
    return flush();
  }
  Result<> sync() override {
    TRY(flush());
    if (!is_dirty_) return {};
    Result<> synced = file_->sync();
    is_dirty_ = !synced.ok();
    // The system forgets what a failed fsync could not write, so only a new file is safe.
    if (!synced.ok()) is_torn_ = true;
    return synced;
  }
  Result<> close() override {
    TRY(sync());
    return file_->close();
  }

 private:
  Result<> flush() {
    if (is_torn_) return write_again();
    if (unwritten_.empty()) return {};
    is_dirty_ = true;
    const Result<> written = file_->append_text(unwritten_);
    is_torn_ = !written.ok();
    if (is_torn_) return written;
    size_ += unwritten_.size();
    unwritten_.clear();
    return {};
  }

  // After the last complete row there may be a part of what could not be written. A long run has many rows, so that
  // they are mapped and not read.
  Result<> write_again() {
    const Path path = file_->path();
    const Path target = TRY(rename_target(*env_, path)).value_or(path);
    const MappedFile old = TRY(env_->map_file(path));
    const std::string_view whole = old.text().substr(0, size_);
    const auto write_rows = [&](WritableFile& file) -> Result<> {
      TRY(file.append_text(whole));
      return file.append_text(unwritten_);
    };
    TRY(write_whole(*env_, target, write_rows));
    file_ = TRY(env_->open_for_write(path, WriteMode::kAppend));
    size_ = whole.size() + unwritten_.size();
    unwritten_.clear();
    is_torn_ = is_dirty_ = false;
    return {};
  }

  Env* env_;
  std::unique_ptr<WritableFile> file_;
  uint64_t size_;          // of the rows that are in the file whole
  std::string unwritten_;  // rows that are not
  bool is_torn_ = false;   // the file may end in a part of a row, or hold rows that the disk never got
  bool is_dirty_ = true;   // rows were written since the last fsync, perhaps by the process before this one
};

}  // namespace

Result<std::unique_ptr<MetricSink>> make_jsonl_sink(Env& env, const Path& path, bool append) {
  auto file = TRY(env.open_for_write(path, append ? WriteMode::kAppend : WriteMode::kTruncate));
  const FileInfo info = TRY(env.info(path));
  return std::unique_ptr<MetricSink>(std::make_unique<JsonlSink>(env, std::move(file), info.size_bytes));
}

}  // namespace mortise
