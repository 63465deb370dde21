// metrics.jsonl and updates.jsonl. See sinks.h.
#include <cmath>
#include <utility>

#include "foundation/formats/json.h"
#include "foundation/metrics/record_file.h"
#include "foundation/metrics/sinks.h"

namespace mortise {
namespace {

class JsonlSink final : public MetricSink {
 public:
  explicit JsonlSink(RecordFile file) : file_(std::move(file)) {}

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
    file_.add(dump_json(object) + "\n");
    return file_.flush();
  }
  Result<> sync() override { return file_.sync(); }
  Result<> close() override { return file_.close(); }

 private:
  RecordFile file_;
};

}  // namespace

Result<std::unique_ptr<MetricSink>> make_jsonl_sink(Env& env, const Path& path, bool append) {
  RecordFile file = TRY(RecordFile::open(env, path, append ? WriteMode::kAppend : WriteMode::kTruncate));
  return std::unique_ptr<MetricSink>(std::make_unique<JsonlSink>(std::move(file)));
}

}  // namespace mortise
