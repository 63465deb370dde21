// See step_table.h. No column is named here but those that come with the samples.
#include "foundation/batch/step_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>

namespace mortise {

namespace {

// Keys of columns in a checkpoint, by their level.
constexpr std::string_view kTokenKeys = "tokens.", kRowKeys = "rows.";
constexpr std::string_view kKeptOffsets = "kept.offsets", kKeptIds = "kept.ids", kKeptSeen = "kept.is_seen",
                           kKeptShift = "kept.shift", kKeptPenalty = "kept.repetition_penalty";
constexpr std::string_view kExperts = "experts.taken", kExpertOffsets = "experts.offsets",
                           kExpertWidth = "experts.width";

std::string key_of(Level level, std::string_view name) {
  return std::string(level == Level::kRow ? kRowKeys : kTokenKeys).append(name);
}

}  // namespace

StepTable::StepTable(std::vector<TableRow> rows, std::vector<int64_t> row_id)
    : rows_(std::move(rows)), row_id_(std::move(row_id)) {
  for (const TableRow& row : rows_) {
    row_offsets_.push_back(row_offsets_.back() + static_cast<int64_t>(row.response_ids.size()));
    group_index_.push_back(row.group);
  }
  if (!row_id_.empty()) return;
  row_id_.resize(rows_.size());
  std::iota(row_id_.begin(), row_id_.end(), 0);
}

template <class T>
void StepTable::put(std::string_view name, Level level, std::vector<T> values) {
  const std::string key(name);
  if (values.empty())
    columns_.erase(key);
  else
    columns_.insert_or_assign(key, Stored{level, std::move(values)});
}
template void StepTable::put(std::string_view name, Level level, std::vector<float> values);
template void StepTable::put(std::string_view name, Level level, std::vector<uint8_t> values);

StepView StepTable::view() const {
  StepView out;
  out.layout = layout();
  for (const auto& [name, stored] : columns_) {
    std::visit(
        [&, column = std::string_view(name)](const auto& values) {
          out.set(column, std::span<const typename std::decay_t<decltype(values)>::value_type>(values));
        },
        stored.values);
  }
  return out;
}

StepView StepTable::view(size_t begin, size_t end, const Layout& layout) const {
  StepView out;
  out.layout = layout;
  for (const auto& [name, stored] : columns_) {
    if (stored.level != Level::kToken) continue;
    std::visit(
        [&, column = std::string_view(name)](const auto& values) {
          using T = typename std::decay_t<decltype(values)>::value_type;
          out.set(column, std::span<const T>(values).subspan(begin, end - begin));
        },
        stored.values);
  }
  return out;
}

StepTable StepTable::take(std::span<const int64_t> rows, std::vector<int64_t> row_id) const {
  std::vector<TableRow> taken;
  for (const int64_t r : rows) taken.push_back(row(r));
  StepTable out(std::move(taken), std::move(row_id));
  out.kept_ = kept_of(rows);
  for (const int64_t r : rows) {
    if (experts_.empty()) break;
    out.experts_.append(experts_.of_row(r),
                        experts_.offsets[static_cast<size_t>(r) + 1] - experts_.offsets[static_cast<size_t>(r)]);
  }
  for (const auto& [name, stored] : columns_) {
    std::visit(
        [&, column = std::string_view(name), level = stored.level](const auto& from) {
          std::decay_t<decltype(from)> to;
          to.reserve(out.size_of(level));
          for (const int64_t r : rows) {
            const auto begin = level == Level::kRow ? r : row_offsets_[static_cast<size_t>(r)];
            const auto count = level == Level::kRow ? 1 : row_tokens(r);
            to.insert(to.end(), from.begin() + begin, from.begin() + begin + count);
          }
          out.put(column, level, std::move(to));
        },
        stored.values);
  }
  return out;
}

// 0, 1, 2 ... in the order in which they come. The first so many rows have other groups than the rest.
void StepTable::number_groups(size_t num_first) {
  std::map<std::pair<bool, int64_t>, int64_t> numbers;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const auto next = static_cast<int64_t>(numbers.size());
    rows_[i].group = group_index_[i] = numbers.try_emplace({i < num_first, rows_[i].group}, next).first->second;
  }
}

void StepTable::append_columns(const StepTable& more) {
  for (auto column = columns_.begin(); column != columns_.end();) {
    Stored& stored = column->second;
    const Stored* other = more.find(column->first);
    const bool lacks_any = other == nullptr && more.size_of(stored.level) > 0;
    if (other != nullptr) {
      std::visit(
          [&](auto& values) {
            const auto& from = std::get<std::decay_t<decltype(values)>>(other->values);
            values.insert(values.end(), from.begin(), from.end());
          },
          stored.values);
    }
    column = lacks_any ? columns_.erase(column) : std::next(column);
  }
  for (const auto& [name, stored] : more.columns_) {
    if (size_of(stored.level) == 0) columns_.try_emplace(name, stored);
  }
}

// Rows whose experts are not known leave the choice to the routers.
void StepTable::append_experts(const StepTable& more) {
  if (experts_.empty() && more.experts_.empty()) return;
  const int64_t width = experts_.empty() ? more.experts_.width : experts_.width;
  ExpertChoices all;
  const auto add = [&](const StepTable& from) {
    for (int64_t r = 0; r < from.num_rows(); ++r) {
      const auto length = static_cast<int64_t>(from.row(r).prompt_ids.size() + from.row(r).response_ids.size());
      const std::vector<uint16_t> unknown(static_cast<size_t>(from.experts_.empty() ? length * width : 0), kNoExpert);
      all.append(from.experts_.empty() ? std::span<const uint16_t>(unknown) : from.experts_.of_row(r), length);
    }
  };
  add(*this);
  add(more);
  experts_ = std::move(all);
}

void StepTable::append(const StepTable& more) {
  const size_t num_first = rows_.size();
  append_experts(more);
  append_columns(more);  // sizes are those of before
  if (more.kept_.empty() ? more.num_tokens() > 0 : kept_.empty() && num_tokens() > 0)
    kept_ = {};
  else if (!more.kept_.empty())
    kept_.append(more.kept_, 0, more.kept_.num_places());
  for (const TableRow& row : more.rows_) {
    row_id_.push_back(static_cast<int64_t>(rows_.size()));
    rows_.push_back(row);
    row_offsets_.push_back(row_offsets_.back() + static_cast<int64_t>(row.response_ids.size()));
    group_index_.push_back(row.group);
  }
  std::iota(row_id_.begin(), row_id_.end(), 0);
  number_groups(num_first);
}

void StepTable::move_ids(std::vector<TableRow> rows) {
  assert(rows.size() == rows_.size());
  rows_ = std::move(rows);
}

KeptTokens StepTable::kept_of(std::span<const int64_t> rows) const {
  KeptTokens out;
  if (kept_.empty()) return out;
  for (const int64_t r : rows)
    out.append(kept_, row_offsets_[static_cast<size_t>(r)], row_offsets_[static_cast<size_t>(r) + 1]);
  return out;
}

void StepTable::save_columns(StateWriter& writer) const {
  if (!kept_.empty()) {
    const auto& [offsets, ids, is_seen, shift, repetition_penalty] = kept_;
    writer.put_vector(kKeptOffsets, offsets);
    writer.put_vector(kKeptIds, ids);
    writer.put_vector(kKeptSeen, is_seen);
    writer.put_vector(kKeptShift, shift);
    writer.put_double(kKeptPenalty, repetition_penalty);
  }
  if (!experts_.empty()) {
    const auto& [width, offsets, experts] = experts_;
    writer.put_int(kExpertWidth, width);
    writer.put_vector(kExpertOffsets, offsets);
    writer.put_bytes(kExperts, {reinterpret_cast<const char*>(experts.data()), experts.size() * sizeof(uint16_t)});
  }
  for (const auto& [name, stored] : columns_) {
    std::visit([&, key = key_of(stored.level, name)](const auto& values) { writer.put_vector(key, values); },
               stored.values);
  }
}

template <class C>
Result<> StepTable::load_column(StateReader& reader, const std::string& key) {
  auto values = TRY(reader.get_vector<typename C::Value>(key));
  if (values.size() != size_of(C::level)) {
    return Error{ErrorKind::kData,
                 fmt::format("the column {} has {} values, but the step has {} {}", C::name, values.size(),
                             size_of(C::level), C::level == Level::kRow ? "rows" : "tokens"),
                 "state 'step'", "resume from another checkpoint"};
  }
  put<C>(std::move(values));
  return {};
}

template <class... Columns>
Result<> StepTable::load_columns(StateReader& reader, std::tuple<Columns...>*) {
  for (const std::string& key : reader.unread_keys()) {
    if (!key.starts_with(kTokenKeys) && !key.starts_with(kRowKeys)) continue;
    Result<> loaded;
    const bool is_known =
        ((key == key_of(Columns::level, Columns::name) && (loaded = load_column<Columns>(reader, key), true)) || ...);
    TRY(std::move(loaded));
    if (is_known) continue;
    return Error{ErrorKind::kData,
                 fmt::format("the step has the column {}, which this build of Mortise does not know", key),
                 "state 'step'", "resume from a checkpoint between steps (global_step_N)"};
  }
  return {};
}

Result<> StepTable::load_kept(StateReader& reader) {
  kept_ = {};
  if (!reader.has(kKeptOffsets)) return {};
  kept_.offsets = TRY(reader.get_vector<int64_t>(kKeptOffsets));
  kept_.ids = TRY(reader.get_vector<int32_t>(kKeptIds));
  kept_.is_seen = TRY(reader.get_vector<uint8_t>(kKeptSeen));
  kept_.shift = TRY(reader.get_vector<float>(kKeptShift));
  kept_.repetition_penalty = TRY(reader.get_double(kKeptPenalty));
  const bool fits =
      static_cast<int64_t>(kept_.offsets.size()) == num_tokens() + 1 && kept_.offsets.front() == 0 &&
      std::ranges::is_sorted(kept_.offsets) && kept_.offsets.back() == static_cast<int64_t>(kept_.ids.size()) &&
      kept_.is_seen.size() == kept_.shift.size() && (kept_.shift.empty() || kept_.shift.size() == kept_.ids.size());
  if (fits) return {};
  return Error{ErrorKind::kData, "the kept tokens do not fit to the step's tokens", "state 'step'",
               "resume from another checkpoint"};
}

Result<> StepTable::load_experts(StateReader& reader) {
  experts_ = {};
  if (!reader.has(kExperts)) return {};
  experts_.width = TRY(reader.get_int(kExpertWidth));
  experts_.offsets = TRY(reader.get_vector<int64_t>(kExpertOffsets));
  const std::string bytes = TRY(reader.get_bytes(kExperts));
  experts_.experts.resize(bytes.size() / sizeof(uint16_t));
  std::memcpy(experts_.experts.data(), bytes.data(), experts_.experts.size() * sizeof(uint16_t));
  bool fits = experts_.width > 0 && experts_.num_rows() == num_rows() && experts_.offsets.front() == 0;
  for (int64_t r = 0; fits && r < num_rows(); ++r) {
    const auto length = static_cast<int64_t>(row(r).prompt_ids.size() + row(r).response_ids.size());
    fits = experts_.offsets[static_cast<size_t>(r) + 1] - experts_.offsets[static_cast<size_t>(r)] == length;
  }
  if (fits && static_cast<int64_t>(experts_.experts.size()) == experts_.offsets.back() * experts_.width) return {};
  return Error{ErrorKind::kData, "the experts do not fit to the step's tokens", "state 'step'",
               "resume from another checkpoint"};
}

Result<> StepTable::load_columns(StateReader& reader) {
  TRY(load_kept(reader));
  TRY(load_experts(reader));
  return load_columns(reader, static_cast<column::All*>(nullptr));
}

StepTable make_step_table(const PromptBatch& prompts, const SampleBatch& samples) {
  std::vector<TableRow> rows;
  std::vector<uint8_t> mask;
  std::vector<float> sampler_log_prob;
  bool has_log_probs = true;
  for (const Sample& sample : samples.rows) {
    const Prompt& prompt = prompts.prompts[static_cast<size_t>(sample.prompt_index)];
    const std::vector<int64_t>& own_prompt = sample.turns.prompt_ids;
    rows.push_back({own_prompt.empty() ? prompt.token_ids : own_prompt, sample.token_ids, sample.prompt_index});
    const bool is_masked = sample.finish_reason == FinishReason::kAbort ||
                           (samples.mask_truncated && sample.finish_reason == FinishReason::kLength);
    const std::vector<uint8_t>& sampled = sample.turns.is_sampled;
    if (is_masked || sampled.empty()) {
      mask.insert(mask.end(), sample.token_ids.size(), is_masked ? 0 : 1);
    } else {
      mask.insert(mask.end(), sampled.begin(), sampled.end());
    }
    has_log_probs = has_log_probs && sample.log_prob.size() == sample.token_ids.size();
    sampler_log_prob.insert(sampler_log_prob.end(), sample.log_prob.begin(), sample.log_prob.end());
  }
  StepTable table(std::move(rows));
  table.put<column::SampleMask>(mask);
  table.put<column::ResponseMask>(std::move(mask));
  if (has_log_probs) table.put<column::RolloutLogProb>(std::move(sampler_log_prob));
  return table;
}

}  // namespace mortise
