// One ordinary call for each kind of plugin, and the comparison of two results.
#include "conformance/workload.h"

#include <fmt/core.h>

#include <cmath>

#include "conformance/episode_drive.h"
#include "conformance/reward_call.h"
#include "conformance/rollout_drive.h"
#include "conformance/token_batch.h"
#include "foundation/base/text.h"

namespace mortise::check {
namespace {

void append_metrics(const std::vector<MetricRecord>& metrics, std::vector<double>& out) {
  for (const MetricRecord& metric : metrics) {
    out.push_back(metric.sum);
    out.push_back(metric.weight);
  }
}

Result<std::vector<double>> token_work(const Instance& instance, const WorkShape& shape) {
  TokenCall how;
  how.tail_bytes = shape.tail_bytes;
  how.gradient = shape.optional_outputs;
  const TokenBatch batch = usual_batch(shape.seed);
  const TokenResult result = TRY(tokens_ok(instance, batch, how));
  std::vector<double> out;
  for (const auto& values : result.out) {
    for (size_t t = 0; t < values.size(); ++t) out.push_back(batch.mask[t] != 0 ? static_cast<double>(values[t]) : 0.0);
  }
  append_metrics(result.call.metrics, out);
  return out;
}

Result<std::vector<double>> reward_work(const Instance& instance, const WorkShape& shape) {
  RewardShape how;
  how.tail_bytes = shape.tail_bytes;
  how.row_value = shape.optional_outputs;
  const RewardResult result = TRY(reward_ok(instance, usual_rows(instance.subject(), shape.seed), how));
  std::vector<double> out = result.rewards;
  append_metrics(result.call.metrics, out);
  return out;
}

Result<std::vector<double>> rollout_work(const Instance& instance, const WorkShape& shape) {
  DriveOptions options;
  options.tail_bytes = shape.tail_bytes;
  options.seed = shape.seed;
  const DriveResult result = TRY(drive_ok(instance, options));
  std::vector<double> out;
  for (const GivenSequence& sequence : result.sequences) {
    for (const int64_t id : sequence.ids) out.push_back(static_cast<double>(id));
    out.insert(out.end(), sequence.log_prob.begin(), sequence.log_prob.end());
    out.push_back(sequence.finish_reason);
  }
  return out;
}

Result<std::vector<double>> episode_work(const Instance& instance, const WorkShape& shape) {
  std::vector<double> out;
  const std::string text = TRY(call_describe(instance, shape.tail_bytes));
  out.push_back(static_cast<double>(text.size()));
  for (const Played& episode : TRY(play(instance, usual_starts(shape.seed), shape.tail_bytes))) {
    for (const EpisodeAnswer& answer : episode) {
      out.push_back(answer.reward);
      out.push_back(answer.done ? 1.0 : 0.0);
      out.insert(out.end(), answer.messages.begin(), answer.messages.end());
    }
  }
  return out;
}

}  // namespace

Result<std::vector<double>> do_work(const Instance& instance, const WorkShape& shape) {
  const uint32_t kind = instance.subject().kind();
  if ((kind & kTokens) != 0) return token_work(instance, shape);
  if (kind == kReward) return reward_work(instance, shape);
  if (kind == kEnvironment) return episode_work(instance, shape);
  return rollout_work(instance, shape);
}

Result<> demand_same(const std::vector<double>& one, const std::vector<double>& other, std::string_view what) {
  if (one.size() != other.size())
    return broken(fmt::format("{}: {} numbers and then {}", what, one.size(), other.size()));
  for (size_t i = 0; i < one.size(); ++i) {
    if (one[i] == other[i] || (std::isnan(one[i]) && std::isnan(other[i]))) continue;
    return broken(fmt::format("{}: number {} of the results is {} and then {}", what, i, format_f64(one[i]),
                              format_f64(other[i])));
  }
  return {};
}

Result<std::vector<double>> live_once(const Subject& subject) {
  Instance instance = TRY(subject.create(make_host()));
  std::vector<double> out = TRY(do_work(instance));
  if (const std::string thrown = instance.end(); !thrown.empty()) return broken(thrown);
  return out;
}

}  // namespace mortise::check
