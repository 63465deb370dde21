// Writes and reads the scores of a part, and joins parts.
#include "experience/reward/shared_scores.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "foundation/base/hints.h"
#include "foundation/batch/float_bytes.h"
#include "plugin/worker/channel.h"
#include "plugin/worker/messages.h"

namespace mortise {

std::string encode_part(const ScorePart& part) {
  Encoder out;
  out.u64(part.rows.size());
  for (const int64_t row : part.rows) out.i64(row);
  out.i64(part.error ? 1 : 0);
  if (part.error) {
    out.i64(static_cast<int64_t>(part.error->kind)).text(part.error->what).text(part.error->where);
    return out.text(part.error->next).bytes();
  }
  const RewardOutput& from = part.output;
  out.i64(from.token_rewards.empty() ? 0 : 1);
  for (const int64_t row : part.rows) {
    out.f64(from.rewards[static_cast<size_t>(row)]);
    if (!from.token_rewards.empty()) out.text(float_bytes(from.token_rewards[static_cast<size_t>(row)]));
  }
  out.u64(from.failed_rows.size());
  for (const FailedRow& failed : from.failed_rows) out.i64(failed.row).i64(failed.code).text(failed.text);
  out.u64(from.row_values.size());
  for (const RowValue& value : from.row_values) put_row_value(out, value);
  put_metrics(out, from.metrics);
  for (const int64_t row : from.metric_rows) out.i64(row);
  return out.bytes();
}

Result<ScorePart> decode_part(std::string_view bytes, size_t num_rows) {
  const Error unreadable{ErrorKind::kInternal, "the rewards of another rank cannot be read", "",
                         hints::kOneBuildOfRanks};
  Decoder in(bytes);
  ScorePart part;
  part.rows.resize(in.count(sizeof(int64_t)));
  for (int64_t& row : part.rows) {
    row = in.i64();
    if (row < 0 || row >= static_cast<int64_t>(num_rows)) return unreadable;
  }
  const auto is_own = [&](int64_t row) { return std::ranges::binary_search(part.rows, row); };
  if (in.i64() != 0) {
    Error& error = part.error.emplace();
    error.kind = static_cast<ErrorKind>(in.i64());
    for (std::string* text : {&error.what, &error.where, &error.next}) *text = in.text();
    if (!in.done()) return unreadable;
    return part;
  }
  RewardOutput& to = part.output;
  to.rewards.assign(num_rows, std::numeric_limits<double>::quiet_NaN());
  const bool has_tokens = in.i64() != 0;
  if (has_tokens) to.token_rewards.resize(num_rows);
  for (const int64_t row : part.rows) {
    to.rewards[static_cast<size_t>(row)] = in.f64();
    if (has_tokens) to.token_rewards[static_cast<size_t>(row)] = floats_of_bytes(in.text());
  }
  to.failed_rows.resize(in.count(1));
  for (FailedRow& failed : to.failed_rows) {
    failed.row = in.i64();
    failed.code = static_cast<int32_t>(in.i64());
    failed.text = in.text();
    if (!is_own(failed.row)) return unreadable;
  }
  to.row_values.resize(in.count(1));
  for (RowValue& value : to.row_values) {
    value = read_row_value(in);
    if (!is_own(value.row)) return unreadable;
  }
  to.metrics = read_metrics(in);
  for (size_t left = to.metrics.size(); left > 0; --left) to.metric_rows.push_back(in.i64());
  if (!in.done()) return unreadable;
  return part;
}

namespace {

void sort_by_row(RewardOutput& out) {
  std::vector<size_t> order(out.metrics.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return out.metric_rows[i]; });
  std::vector<MetricRecord> metrics;
  for (const size_t i : order) metrics.push_back(std::move(out.metrics[i]));
  out.metrics = std::move(metrics);
  std::ranges::sort(out.metric_rows);
  std::ranges::stable_sort(out.failed_rows, {}, &FailedRow::row);
  std::ranges::stable_sort(out.row_values, {}, &RowValue::row);
}

}  // namespace

Result<RewardOutput> join_parts(std::vector<ScorePart> parts, size_t num_rows) {
  std::erase_if(parts, [](const ScorePart& part) { return part.rows.empty() && !part.error; });
  const bool all_failed = std::ranges::all_of(parts, [](const ScorePart& part) { return part.error.has_value(); });
  RewardOutput out;
  out.rewards.assign(num_rows, std::numeric_limits<double>::quiet_NaN());
  for (ScorePart& part : parts) {
    if (part.error && (all_failed || part.error->kind == ErrorKind::kSignal)) return *std::move(part.error);
    if (part.error) {
      for (const int64_t row : part.rows) out.failed_rows.push_back({row, 0, failure_text(*part.error)});
      continue;
    }
    RewardOutput& from = part.output;
    if (!from.token_rewards.empty()) out.token_rewards.resize(num_rows);
    for (const int64_t at : part.rows) {
      const auto row = static_cast<size_t>(at);
      out.rewards[row] = from.rewards[row];
      if (!from.token_rewards.empty()) out.token_rewards[row] = std::move(from.token_rewards[row]);
    }
    std::ranges::move(from.failed_rows, std::back_inserter(out.failed_rows));
    std::ranges::move(from.row_values, std::back_inserter(out.row_values));
    std::ranges::move(from.metrics, std::back_inserter(out.metrics));
    out.metric_rows.insert(out.metric_rows.end(), from.metric_rows.begin(), from.metric_rows.end());
  }
  sort_by_row(out);
  return out;
}

}  // namespace mortise
