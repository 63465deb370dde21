// Fills guarded columns with rows, calls the reward, and compares results.
#include "conformance/reward_call.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "conformance/guarded_args.h"
#include "mortise/kinds/reward.h"
#include "plugin/host/abi_struct.h"

namespace mortise::check {
namespace {

mortise_text_column text_column(GuardedArguments& args, const std::string& name, const TextColumn& column) {
  return {args.array(name, std::span<const char>(column.bytes)), args.array("offsets of " + name, column.offsets)};
}

void fill_columns(GuardedArguments& args, const RewardBatch& batch, mortise_reward_in& in) {
  std::vector<const mortise_column*> columns;
  for (const DataColumn& column : batch.columns) {
    auto* out = args.make<mortise_column>("the column's struct");
    out->type = static_cast<int32_t>(column.type);
    out->name = {args.array("name of a column", std::span<const char>(column.name)), column.name.size()};
    out->valid = args.array("valid of column " + column.name, column.valid);
    if (column.type == ColumnType::kText || column.type == ColumnType::kJson)
      out->text = text_column(args, "column " + column.name, column.text);
    if (column.type == ColumnType::kI64) out->i64 = args.array("column " + column.name, column.i64);
    if (column.type == ColumnType::kF64) out->f64 = args.array("column " + column.name, column.f64);
    columns.push_back(out);
  }
  in.num_columns = columns.size();
  in.columns = args.array("columns", columns);
}

void fill(GuardedArguments& args, const RewardBatch& batch, mortise_reward_in& in) {
  in.num_rows = batch.num_rows;
  in.prompt = text_column(args, "prompt", batch.prompt);
  in.completion = text_column(args, "completion", batch.completion);
  in.messages = text_column(args, "messages", batch.messages);
  in.prompt_ids = {args.array("prompt_ids", batch.prompt_ids.ids), args.array("offsets", batch.prompt_ids.offsets)};
  in.completion_ids = {args.array("completion_ids", batch.completion_ids.ids),
                       args.array("offsets", batch.completion_ids.offsets)};
  in.finish_reason = args.array("finish_reason", batch.finish_reason);
  in.group_index = args.array("group_index", batch.group_index);
  in.sample_index = args.array("sample_index", batch.sample_index);
  in.row_id = args.array("row_id", batch.row_id);
  in.step = batch.step;
  in.max_response_length = batch.max_response_length;
  fill_columns(args, batch, in);
}

struct RewardSink {
  int64_t num_rows;
  std::vector<RowValue> values;
  std::string misuse;
};
void take_value(void* context, int64_t row, mortise_text name, double value) noexcept {
  auto& sink = *static_cast<RewardSink*>(context);
  if (row < 0 || row >= sink.num_rows) {
    sink.misuse = fmt::format("gave a named number to row {} of {}", row, sink.num_rows);
    return;
  }
  try {
    sink.values.push_back({row, std::string(name.data, name.size), value});
  } catch (const std::bad_alloc&) {  // the case takes the memory away: the number is lost
  }
}

}  // namespace

RewardResult call_reward(const Instance& instance, const RewardBatch& batch, const RewardShape& how) {
  const auto rows = static_cast<size_t>(batch.num_rows);
  GuardedArguments args(how.tail_bytes);
  auto* in = args.make<mortise_reward_in>("the inputs' struct");
  fill(args, batch, *in);
  auto* out = args.make<mortise_reward_out>("the outputs' struct");
  GuardedMemory& rewards = args.output("rewards", rows * sizeof(double));
  out->rewards = rewards.as<double>();
  std::fill_n(out->rewards, rows, std::numeric_limits<double>::quiet_NaN());
  GuardedMemory& token_rewards = args.output("token_rewards", batch.completion_ids.ids.size() * sizeof(float));
  const bool asks = how.token_rewards && gives_token_rewards(instance.subject().info());
  if (asks) out->token_rewards = token_rewards.as<float>();
  RewardSink sink{batch.num_rows, {}, {}};
  out->sink = &sink;
  out->row_value = how.row_value ? take_value : nullptr;
  args.protect_arrays();

  RewardResult result;
  const auto slot = catchable(instance.subject().vtable<mortise_reward_vtable>().score);
  result.call =
      instance.subject().run(batch.num_rows, [&](mortise_call* call) { return slot(instance.self(), call, in, out); });
  if (result.call.misuse.empty()) result.call.misuse = sink.misuse;
  result.rewards.assign(rewards.as<double>(), rewards.as<double>() + rows);
  for (const FailedRow& failed : result.call.failed_rows)
    result.rewards[static_cast<size_t>(failed.row)] = std::numeric_limits<double>::quiet_NaN();
  for (size_t row = 0; asks && row < rows; ++row) {
    const std::vector<uint64_t>& offsets = batch.completion_ids.offsets;
    result.token_rewards.emplace_back(token_rewards.as<float>() + offsets[row],
                                      token_rewards.as<float>() + offsets[row + 1]);
  }
  result.row_values = std::move(sink.values);
  result.damage = rewards.damage() + token_rewards.damage();
  return result;
}

Result<RewardResult> reward_ok(const Instance& instance, const RewardBatch& batch, const RewardShape& how) {
  RewardResult result = call_reward(instance, batch, how);
  TRY(demand_ok(result.call, "score"));
  if (!result.damage.empty()) return broken(result.damage);
  for (size_t row = 0; row < result.rewards.size(); ++row) {
    if (std::isinf(result.rewards[row]))
      return broken(fmt::format("row {} got an infinite reward; give a number, or NaN where none applies", row));
  }
  return result;
}

bool same_reward(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace mortise::check
