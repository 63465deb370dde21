// metrics.jsonl and updates.jsonl. See sinks.h.
#include <cmath>

#include "foundation/formats/jsonl.h"
#include "foundation/metrics/sinks.h"

namespace mortise {
namespace {

class JsonlSink final : public MetricSink {
 public:
  explicit JsonlSink(JsonlWriter writer) : writer_(std::move(writer)) {}

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
    return writer_.write(object);
  }
  Result<> close() override {
    TRY(writer_.sync());
    return writer_.close();
  }

 private:
  JsonlWriter writer_;
};

}  // namespace

Result<std::unique_ptr<MetricSink>> make_jsonl_sink(Env& env, const Path& path, bool append) {
  JsonlWriter writer = TRY(JsonlWriter::open(env, path, {.append = append, .sync_each = false}));
  return std::unique_ptr<MetricSink>(std::make_unique<JsonlSink>(std::move(writer)));
}

}  // namespace mortise
