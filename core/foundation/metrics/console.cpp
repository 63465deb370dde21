// The line of progress. See sinks.h.
#include <fmt/core.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>

#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/metrics/pace.h"
#include "foundation/metrics/sinks.h"

namespace mortise {
namespace {

std::optional<double> find_value(const MetricRow& row, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    for (const MetricValue& metric : row.values) {
      if (metric.name == name) return metric.value;
    }
  }
  return std::nullopt;
}

std::string short_number(double value) {
  std::array<char, 32> out{};
  const double size = std::abs(value);
  const char* format = size != 0 && size < 1e-3 ? "%.1e" : size < 10 ? "%.3f" : size < 1000 ? "%.1f" : "%.4g";
  std::snprintf(out.data(), out.size(), format, value);
  return out.data();
}

class ConsoleSink final : public MetricSink {
 public:
  ConsoleSink(Env& env, const ConsoleOptions& options)
      : env_(&env), options_(options), pace_(options.first_step, env.monotonic_ns()) {}

  Result<> write(const MetricRow& row) override {
    if (row.keys.empty()) return {};
    const int64_t step = row.keys.front().second;
    const int64_t now_ns = env_->monotonic_ns();
    pace_.add(step, now_ns);
    const std::string text = progress_text(row, options_.total_steps, seconds_left(step));
    const bool moves = log_has_terminal();
    if (moves) {
      log_progress_line(text);
      last_text_ = text;
    }
    const bool last = options_.total_steps > 0 && step >= options_.total_steps;
    const bool due = step % std::max<int64_t>(1, options_.plain_every) == 0 &&
                     (!printed_ns_ || static_cast<double>(now_ns - *printed_ns_) >= options_.plain_every_s * 1e9);
    const bool prints = !moves && (last || due);
    if (prints) printed_ns_ = now_ns;
    log_info_at(prints ? LogPlace::kBoth : LogPlace::kFile, text);
    return {};
  }
  Result<> close() override {
    log_progress_line("");
    // The last text of the moving line stays on the screen.
    if (!last_text_.empty()) log_info_at(LogPlace::kConsole, last_text_);
    last_text_.clear();
    return {};
  }

 private:
  [[nodiscard]] double seconds_left(int64_t step) const {
    const std::optional<double> pace_s = pace_.seconds_per_step();
    if (options_.total_steps <= 0 || !pace_s) return -1;
    return *pace_s * static_cast<double>(std::max<int64_t>(0, options_.total_steps - step));
  }

  Env* env_;
  ConsoleOptions options_;
  Pace pace_;
  std::optional<int64_t> printed_ns_;
  std::string last_text_;  // what the moving line says
};

}  // namespace

std::string progress_text(const MetricRow& row, int64_t total_steps, double seconds_left) {
  std::string text = row.keys.empty() ? "" : fmt::format("{} {}", row.keys.front().first, row.keys.front().second);
  if (total_steps > 0) text += "/" + std::to_string(total_steps);
  const bool is_last = total_steps > 0 && !row.keys.empty() && row.keys.front().second >= total_steps;
  if (seconds_left >= 0 && !is_last) text += fmt::format("  {} left", format_duration(seconds_left));
  const auto show = [&](std::string_view label, std::initializer_list<std::string_view> names) {
    if (const auto value = find_value(row, names))
      text.append("  ").append(label).append(" ").append(short_number(*value));
  };
  show("reward", {"critic/score/mean", "reward"});
  for (const MetricValue& metric : row.values) {
    if (metric.name.starts_with("val-core/"))
      text.append("  ").append(metric.name).append(" ").append(short_number(metric.value));
  }
  if (const auto time = find_value(row, {"timing_s/step", "perf/time_per_step", "step_time"}))
    text += fmt::format("  {}/step", format_duration(*time));
  show("loss", {"actor/loss", "loss"});
  show("kl", {"actor/kl_loss", "kl"});
  show("entropy", {"actor/entropy", "entropy"});
  show("len", {"response_length/mean", "completions/mean_length"});
  if (const auto rate = find_value(row, {"perf/throughput"}); rate && std::isfinite(*rate) && std::abs(*rate) < 1e15)
    text += fmt::format("  {} tok/s", format_count(std::llround(*rate)));
  return text;
}

std::unique_ptr<MetricSink> make_console_sink(Env& env, const ConsoleOptions& options) {
  return std::make_unique<ConsoleSink>(env, options);
}

}  // namespace mortise
