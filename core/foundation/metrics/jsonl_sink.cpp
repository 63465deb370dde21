// metrics.jsonl and updates.jsonl. See sinks.h.
#include <algorithm>
#include <cmath>

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
  Result<> close() override {
    TRY(flush());
    TRY(file_->sync());
    return file_->close();
  }

 private:
  Result<> flush() {
    if (unwritten_.empty()) return {};
    if (is_torn_) return write_anew();
    const Result<> written = file_->append_text(unwritten_);
    is_torn_ = !written.ok();
    if (is_torn_) return written;
    size_ += unwritten_.size();
    unwritten_.clear();
    return {};
  }

  // A part of what could not be written may stand behind the last whole row.
  Result<> write_anew() {
    const Path path = file_->path();
    std::string all = TRY(env_->read_file(path, UINT64_MAX));
    all.resize(std::min<size_t>(all.size(), size_));
    all += unwritten_;
    TRY(write_file_atomic(*env_, path, all));
    file_ = TRY(env_->open_for_write(path, WriteMode::kAppend));
    size_ = all.size();
    unwritten_.clear();
    is_torn_ = false;
    return {};
  }

  Env* env_;
  std::unique_ptr<WritableFile> file_;
  uint64_t size_;          // of the rows that are in the file whole
  std::string unwritten_;  // rows that are not
  bool is_torn_ = false;
};

}  // namespace

Result<std::unique_ptr<MetricSink>> make_jsonl_sink(Env& env, const Path& path, bool append) {
  auto file = TRY(env.open_for_write(path, append ? WriteMode::kAppend : WriteMode::kTruncate));
  const FileInfo info = TRY(env.info(path));
  return std::unique_ptr<MetricSink>(std::make_unique<JsonlSink>(env, std::move(file), info.size_bytes));
}

}  // namespace mortise
