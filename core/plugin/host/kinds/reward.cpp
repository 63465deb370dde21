#include "plugin/host/kinds/reward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>

#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "mortise/kinds/reward.h"
#include "plugin/host/abi_struct.h"

namespace mortise {
namespace {

constexpr std::string_view kSlot = "score";

mortise_reward_vtable vtable_of(const PluginInstance& instance) {
  return read_abi_struct(static_cast<const mortise_reward_vtable*>(instance.vtable()));
}

// What the C structs of a call point to: the batch's columns, and stand-ins for those left empty.
struct RewardArgs {
  std::vector<uint64_t> no_offsets;  // of empty text and id columns
  std::vector<int32_t> finish_reason;
  std::vector<int64_t> numbers;  // 0, 1, 2 ...
  std::vector<int64_t> zeros;
  std::vector<mortise_column> columns;
  std::vector<const mortise_column*> column_pointers;
  mortise_reward_in in = make_abi_struct<mortise_reward_in>();
};

mortise_text_column text_view(const TextColumn& column, const std::vector<uint64_t>& no_offsets) {
  return {column.bytes.data(), column.size() == 0 ? no_offsets.data() : column.offsets.data()};
}

mortise_id_column id_view(const IdColumn& column, const std::vector<uint64_t>& no_offsets) {
  return {column.ids.data(), column.size() == 0 ? no_offsets.data() : column.offsets.data()};
}

template <class T>
const T* or_default(const std::vector<T>& given, std::vector<T>& stand_in, size_t rows, bool count_up) {
  if (!given.empty() || rows == 0) return given.data();
  stand_in.resize(rows);
  if (count_up) std::iota(stand_in.begin(), stand_in.end(), T{0});
  return stand_in.data();
}

void fill_columns(const RewardBatch& batch, RewardArgs& args) {
  for (const DataColumn& column : batch.columns) {
    auto out = make_abi_struct<mortise_column>();
    out.type = static_cast<int32_t>(column.type);
    out.name = {column.name.data(), column.name.size()};
    out.valid = column.valid.data();
    if (column.type == ColumnType::kText || column.type == ColumnType::kJson)
      out.text = text_view(column.text, args.no_offsets);
    if (column.type == ColumnType::kI64) out.i64 = column.i64.data();
    if (column.type == ColumnType::kF64) out.f64 = column.f64.data();
    args.columns.push_back(out);
  }
  for (const mortise_column& column : args.columns) args.column_pointers.push_back(&column);
}

void fill(const RewardBatch& batch, RewardArgs& args) {
  const auto rows = static_cast<size_t>(batch.num_rows);
  args.no_offsets.resize(rows + 1);
  fill_columns(batch, args);
  mortise_reward_in& in = args.in;
  in.num_rows = batch.num_rows;
  in.prompt = text_view(batch.prompt, args.no_offsets);
  in.completion = text_view(batch.completion, args.no_offsets);
  in.messages = text_view(batch.messages, args.no_offsets);
  in.prompt_ids = id_view(batch.prompt_ids, args.no_offsets);
  in.completion_ids = id_view(batch.completion_ids, args.no_offsets);
  in.finish_reason = or_default(batch.finish_reason, args.finish_reason, rows, false);
  std::vector<int64_t>& numbers = args.numbers;
  in.row_id = or_default(batch.row_id, numbers, rows, true);
  in.group_index =
      batch.group_index.empty() ? or_default(batch.group_index, numbers, rows, true) : batch.group_index.data();
  in.sample_index = or_default(batch.sample_index, args.zeros, rows, false);
  in.num_columns = args.column_pointers.size();
  in.columns = args.column_pointers.data();
  in.step = batch.step;
  in.max_response_length = batch.max_response_length;
  in.is_validation = batch.is_validation ? 1 : 0;
}

bool column_fits(const DataColumn& column, size_t rows) {
  if (column.valid.size() != rows) return false;
  switch (column.type) {
    case ColumnType::kI64:
      return column.i64.size() == rows;
    case ColumnType::kF64:
      return column.f64.size() == rows;
    default:
      return column.text.size() == rows;
  }
}

Result<> check_batch(const PluginInstance& instance, const RewardBatch& batch) {
  const auto rows = static_cast<size_t>(batch.num_rows);
  const auto fits = [&](size_t size) { return size == 0 || size == rows; };
  bool good = fits(batch.prompt.size()) && fits(batch.completion.size()) && fits(batch.messages.size()) &&
              fits(batch.prompt_ids.size()) && fits(batch.completion_ids.size()) && fits(batch.finish_reason.size()) &&
              fits(batch.group_index.size()) && fits(batch.sample_index.size()) && fits(batch.row_id.size());
  for (const DataColumn& column : batch.columns) good = good && column_fits(column, rows);
  if (good) return {};
  Error error =
      instance.error(kSlot, batch.step, "was called with columns of different lengths", "this is a bug of the engine");
  error.kind = ErrorKind::kInternal;
  return error;
}

struct RowValueSink {
  std::mutex mutex;
  int64_t num_rows = 0;
  std::vector<RowValue> values;
  std::string misuse;
};

void take_row_value(void* context, int64_t row, mortise_text name, double value) noexcept try {
  auto& sink = *static_cast<RowValueSink*>(context);
  const std::lock_guard lock(sink.mutex);
  const std::string_view text = name.data == nullptr ? std::string_view() : std::string_view(name.data, name.size);
  if (row < 0 || row >= sink.num_rows) {
    sink.misuse = "gave the value " + quote(text) + " for row " + std::to_string(row) + " of a batch of " +
                  std::to_string(sink.num_rows);
  } else if (text.empty() || find_invalid_utf8(text)) {
    sink.misuse = "gave a row value under the name " + quote(text);
  } else {
    sink.values.push_back({row, std::string(text), value});
  }
} catch (...) {  // out of memory: the value is lost, the run goes on
}

}  // namespace

Result<Reward> Reward::create(PluginRegistry& registry, std::string_view name, const Json& params, const RunKey& key) {
  Reward made(TRY(PluginInstance::create(registry, MORTISE_KIND_REWARD, name, params, key)));
  const auto vtable = vtable_of(made.instance_);
  if (vtable.score == nullptr)
    return made.instance_.error("create", 0, "its vtable lacks the mandatory slot 'score'", "build the pack again");
  if (vtable.granularity < MORTISE_REWARD_ROW || vtable.granularity > MORTISE_REWARD_BATCH) {
    return made.instance_.error("create", 0,
                                "its vtable has the unknown granularity " + std::to_string(vtable.granularity),
                                "build the pack again");
  }
  return made;
}

Granularity Reward::granularity() const { return static_cast<Granularity>(vtable_of(instance_).granularity); }

Result<RewardOutput> Reward::score(const RewardBatch& batch, bool want_token_rewards, MetricSet* metrics,
                                   const CallOptions& options) {
  TRY(check_batch(instance_, batch));
  RewardArgs args;
  fill(batch, args);
  RewardOutput result;
  result.rewards.assign(static_cast<size_t>(batch.num_rows), std::numeric_limits<double>::quiet_NaN());
  if (want_token_rewards) result.token_rewards.assign(batch.completion_ids.ids.size(), 0.0F);
  RowValueSink sink;
  sink.num_rows = batch.num_rows;
  auto out = make_abi_struct<mortise_reward_out>();
  out.rewards = result.rewards.data();
  out.token_rewards = want_token_rewards ? result.token_rewards.data() : nullptr;
  out.row_value = take_row_value;
  out.sink = &sink;

  const auto slot = catchable(vtable_of(instance_).score);
  CallOptions with_rows = options;
  with_rows.num_rows = batch.num_rows;
  CallReport report = TRY(instance_.call(kSlot, batch.step, metrics, with_rows, [&](mortise_call* call) {
    return slot(instance_.self(), call, &args.in, &out);
  }));
  if (!sink.misuse.empty()) return instance_.error(kSlot, batch.step, sink.misuse, "tell the pack's author");

  result.failed_rows = std::move(report.failed_rows);
  result.seconds = report.seconds;
  for (const FailedRow& failed : result.failed_rows)
    result.rewards[static_cast<size_t>(failed.row)] = std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < result.rewards.size(); ++i) {
    if (std::isinf(result.rewards[i]))
      return instance_.error(kSlot, batch.step,
                             "gave the reward " + format_f64(result.rewards[i]) + " to row " + std::to_string(i),
                             "a reward is a number, or NaN where it does not apply");
  }
  for (size_t i = 0; i < result.token_rewards.size(); ++i) {
    if (!std::isfinite(result.token_rewards[i]))
      return instance_.error(
          kSlot, batch.step,
          "gave the token reward " + format_f64(result.token_rewards[i]) + " at token " + std::to_string(i),
          "a token reward is a finite number");
  }
  std::stable_sort(sink.values.begin(), sink.values.end(),
                   [](const RowValue& a, const RowValue& b) { return a.row < b.row; });
  result.row_values = std::move(sink.values);
  return result;
}

}  // namespace mortise
