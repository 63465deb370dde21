// Writes and reads the scores of a part, and joins parts.
#include "experience/reward/shared_scores.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "foundation/base/hints.h"
#include "foundation/batch/float_bytes.h"
#include "plugin/worker/channel.h"
#include "plugin/worker/messages.h"
#include "plugin/worker/metric_bytes.h"

namespace mortise {

std::string encode_part(const ScorePart& part) {
  Encoder out;
  out.i64(part.rows.begin).i64(part.rows.end).i64(part.error ? 1 : 0);
  if (part.error) {
    out.i64(static_cast<int64_t>(part.error->kind)).text(part.error->what).text(part.error->where);
    return out.text(part.error->next).bytes();
  }
  const RewardOutput& from = part.output;
  out.i64(from.token_rewards.empty() ? 0 : 1);
  for (auto row = static_cast<size_t>(part.rows.begin); row < static_cast<size_t>(part.rows.end); ++row) {
    out.f64(from.rewards[row]);
    if (!from.token_rewards.empty()) out.text(float_bytes(from.token_rewards[row]));
  }
  out.u64(from.failed_rows.size());
  for (const FailedRow& failed : from.failed_rows) out.i64(failed.row).i64(failed.code).text(failed.text);
  out.u64(from.row_values.size());
  for (const RowValue& value : from.row_values) put_row_value(out, value);
  return out.text(encode_metrics(part.metrics)).bytes();
}

Result<ScorePart> decode_part(std::string_view bytes, size_t num_rows) {
  const Error unreadable{ErrorKind::kInternal, "the rewards of another rank cannot be read", "",
                         hints::kOneBuildOfRanks};
  Decoder in(bytes);
  ScorePart part;
  part.rows.begin = in.i64();
  part.rows.end = in.i64();
  if (part.rows.begin < 0 || part.rows.end > static_cast<int64_t>(num_rows)) return unreadable;
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
  for (auto row = static_cast<size_t>(part.rows.begin); row < static_cast<size_t>(part.rows.end); ++row) {
    to.rewards[row] = in.f64();
    if (has_tokens) to.token_rewards[row] = floats_of_bytes(in.text());
  }
  to.failed_rows.resize(in.count(1));
  for (FailedRow& failed : to.failed_rows) {
    failed.row = in.i64();
    failed.code = static_cast<int32_t>(in.i64());
    failed.text = in.text();
    if (!part.rows.contains(failed.row)) return unreadable;
  }
  to.row_values.resize(in.count(1));
  for (RowValue& value : to.row_values) {
    value = read_row_value(in);
    if (!part.rows.contains(value.row)) return unreadable;
  }
  part.metrics = TRY(decode_metrics(in.text()));
  if (!in.done()) return unreadable;
  return part;
}

Result<RewardOutput> join_parts(std::vector<ScorePart> parts, size_t num_rows, MetricSet* metrics) {
  std::erase_if(parts, [](const ScorePart& part) { return part.rows.size() == 0 && !part.error; });
  const bool all_failed = std::ranges::all_of(parts, [](const ScorePart& part) { return part.error.has_value(); });
  RewardOutput out;
  out.rewards.assign(num_rows, std::numeric_limits<double>::quiet_NaN());
  for (ScorePart& part : parts) {
    if (part.error && (all_failed || part.error->kind == ErrorKind::kSignal)) return *std::move(part.error);
    if (part.error) {
      for (int64_t row = part.rows.begin; row < part.rows.end; ++row)
        out.failed_rows.push_back({row, 0, failure_text(*part.error)});
      continue;
    }
    if (metrics != nullptr) TRY(metrics->merge(part.metrics));
    if (!part.output.token_rewards.empty()) out.token_rewards.resize(num_rows);
    for (auto row = static_cast<size_t>(part.rows.begin); row < static_cast<size_t>(part.rows.end); ++row) {
      out.rewards[row] = part.output.rewards[row];
      if (!part.output.token_rewards.empty()) out.token_rewards[row] = std::move(part.output.token_rewards[row]);
    }
    std::ranges::move(part.output.failed_rows, std::back_inserter(out.failed_rows));
    std::ranges::move(part.output.row_values, std::back_inserter(out.row_values));
  }
  return out;
}

}  // namespace mortise
