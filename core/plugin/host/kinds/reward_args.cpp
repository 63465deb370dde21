// Fills the C structs of a reward call from a RewardBatch.
#include "plugin/host/kinds/reward_args.h"

#include <fmt/core.h>

#include <numeric>

#include "plugin/host/abi_struct.h"

namespace mortise {
namespace {

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

}  // namespace

Result<> check_reward_batch(const RewardBatch& batch, std::string_view where) {
  const auto rows = static_cast<size_t>(batch.num_rows);
  const auto fits = [&](size_t size) { return size == 0 || size == rows; };
  bool good = fits(batch.prompt.size()) && fits(batch.completion.size()) && fits(batch.messages.size()) &&
              fits(batch.prompt_ids.size()) && fits(batch.completion_ids.size()) && fits(batch.finish_reason.size()) &&
              fits(batch.group_index.size()) && fits(batch.sample_index.size()) && fits(batch.row_id.size());
  for (const DataColumn& column : batch.columns) good = good && column_fits(column, rows);
  if (good) return {};
  return Error{ErrorKind::kInternal, "was called with columns of different lengths",
               fmt::format("{}, score, step {}", where, batch.step), "this is a bug of the engine"};
}

void RewardArgs::add_columns(const RewardBatch& batch) {
  for (const DataColumn& column : batch.columns) {
    auto out = make_abi_struct<mortise_column>();
    out.type = static_cast<int32_t>(column.type);
    out.name = {column.name.data(), column.name.size()};
    out.valid = column.valid.data();
    if (column.type == ColumnType::kText || column.type == ColumnType::kJson)
      out.text = text_view(column.text, no_offsets_);
    if (column.type == ColumnType::kI64) out.i64 = column.i64.data();
    if (column.type == ColumnType::kF64) out.f64 = column.f64.data();
    columns_.push_back(out);
  }
  for (const mortise_column& column : columns_) column_pointers_.push_back(&column);
}

RewardArgs::RewardArgs(const RewardBatch& batch) : in_(make_abi_struct<mortise_reward_in>()) {
  const auto rows = static_cast<size_t>(batch.num_rows);
  no_offsets_.resize(rows + 1);
  add_columns(batch);
  in_.num_rows = batch.num_rows;
  in_.prompt = text_view(batch.prompt, no_offsets_);
  in_.completion = text_view(batch.completion, no_offsets_);
  in_.messages = text_view(batch.messages, no_offsets_);
  in_.prompt_ids = id_view(batch.prompt_ids, no_offsets_);
  in_.completion_ids = id_view(batch.completion_ids, no_offsets_);
  in_.finish_reason = or_default(batch.finish_reason, finish_reason_, rows, false);
  in_.row_id = or_default(batch.row_id, numbers_, rows, true);
  in_.group_index =
      batch.group_index.empty() ? or_default(batch.group_index, numbers_, rows, true) : batch.group_index.data();
  in_.sample_index = or_default(batch.sample_index, zeros_, rows, false);
  in_.num_columns = column_pointers_.size();
  in_.columns = column_pointers_.data();
  in_.step = batch.step;
  in_.max_response_length = batch.max_response_length;
  in_.is_validation = batch.is_validation ? 1 : 0;
}

}  // namespace mortise
