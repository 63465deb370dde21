// Prometheus's text format: a gauge per metric, for node_exporter's textfile collector. See trackers.h.
#include <fmt/core.h>

#include <cmath>
#include <utility>

#include "foundation/base/text.h"
#include "foundation/metrics/trackers.h"

namespace mortise {
namespace {

// Letters, digits and '_'; two metrics may get one name, and their label tells them apart.
std::string gauge_name(std::string_view metric) {
  std::string name = "mortise_";
  for (const char c : metric) {
    const bool fits = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    name += fits ? c : '_';
  }
  return name;
}

std::string label_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

std::string gauge_value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return format_f64(value);
}

class PrometheusSink final : public MetricSink {
 public:
  PrometheusSink(Env& env, const TrackedRun& run)
      : env_(&env),
        path_(run.dir / "metrics.prom"),
        labels_(fmt::format("project=\"{}\",experiment=\"{}\"", label_text(run.project), label_text(run.experiment))) {
    for (const MetricRow& row : run.earlier) take(row);
  }

  Result<> write(const MetricRow& row) override {
    take(row);
    return flush();
  }
  Result<> close() override { return flush(); }

 private:
  void take(const MetricRow& row) {
    if (!row.keys.empty()) step_ = row.keys.front().second;
    for (const MetricValue& metric : row.values) gauges_[{gauge_name(metric.name), metric.name}] = metric.value;
  }

  Result<> flush() {
    std::string text = fmt::format("# TYPE mortise_step gauge\nmortise_step{{{}}} {}\n", labels_, step_);
    std::string last;
    for (const auto& [names, value] : gauges_) {
      const auto& [gauge, metric] = names;
      if (gauge == "mortise_step") continue;
      if (gauge != last) text += fmt::format("# TYPE {} gauge\n", gauge);
      last = gauge;
      text += fmt::format("{}{{{},metric=\"{}\"}} {}\n", gauge, labels_, label_text(metric), gauge_value(value));
    }
    return write_file_atomic(*env_, path_, text);
  }

  Env* env_;
  Path path_;
  std::string labels_;
  int64_t step_ = 0;
  std::map<std::pair<std::string, std::string>, double> gauges_;  // by gauge and metric: a gauge's lines are together
};

}  // namespace

Result<std::unique_ptr<MetricSink>> make_prometheus_sink(Env& env, const TrackedRun& run) {
  return std::unique_ptr<MetricSink>(std::make_unique<PrometheusSink>(env, run));
}

}  // namespace mortise
