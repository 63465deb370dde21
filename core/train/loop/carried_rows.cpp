// See carried_rows.h.
#include "train/loop/carried_rows.h"

#include <algorithm>
#include <utility>

namespace mortise {

namespace {

constexpr std::string_view kNumRows = "num_rows", kGroups = "groups", kPrompts = "prompt_ids",
                           kPromptLengths = "prompt_lengths", kResponses = "response_ids",
                           kResponseLengths = "response_lengths";

void save_ids(StateWriter& writer, std::string_view ids_key, std::string_view lengths_key,
              const std::vector<std::vector<int64_t>>& rows) {
  std::vector<int64_t> ids, lengths;
  for (const std::vector<int64_t>& row : rows) {
    ids.insert(ids.end(), row.begin(), row.end());
    lengths.push_back(static_cast<int64_t>(row.size()));
  }
  writer.put_vector(ids_key, ids);
  writer.put_vector(lengths_key, lengths);
}

Error uneven() {
  return {ErrorKind::kData, "the rows that wait for an update do not fit together", "state 'actor.carry_rows'",
          "resume from another checkpoint"};
}

Result<std::vector<std::vector<int64_t>>> load_ids(StateReader& reader, std::string_view ids_key,
                                                   std::string_view lengths_key, int64_t num_rows) {
  const auto ids = TRY(reader.get_vector<int64_t>(ids_key)), lengths = TRY(reader.get_vector<int64_t>(lengths_key));
  if (std::ssize(lengths) != num_rows) return uneven();
  std::vector<std::vector<int64_t>> rows;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    if (length < 0 || length > std::ssize(ids) - begin) return uneven();
    rows.emplace_back(ids.begin() + begin, ids.begin() + begin + length);
    begin += length;
  }
  if (begin != std::ssize(ids)) return uneven();
  return rows;
}

}  // namespace

StepTable CarriedRows::take(const StepTable& step, std::span<const int64_t> places) const {
  std::vector<int64_t> waiting, fresh;
  for (const int64_t place : places) {
    if (place < size())
      waiting.push_back(place);
    else
      fresh.push_back(place - size());
  }
  StepTable rows = table_.take(waiting, {});
  rows.append(step.take(fresh, {}));
  return rows;
}

bool CarriedRows::fit(const StepTable& step, std::span<const std::string> columns) const {
  if (table_.num_tokens() == 0 || step.num_tokens() == 0) return true;
  const StepView waiting = table_.view(), fresh = step.view();
  const auto is_there = [&](const std::string& name) { return !fresh.has(name) || waiting.has(name); };
  return table_.kept().empty() == step.kept().empty() && std::ranges::all_of(columns, is_there);
}

void CarriedRows::sort_by_group(std::vector<int64_t>& places) const {
  const auto last = static_cast<int64_t>(table_.num_rows());  // above the groups' numbers
  std::ranges::sort(places, {},
                    [&](int64_t place) { return std::pair(place < size() ? table_.row(place).group : last, place); });
}

void CarriedRows::keep(const StepTable& step, std::span<const int64_t> places) {
  StepTable rest = take(step, places);
  std::vector<std::vector<int64_t>> prompts, responses;
  for (int64_t r = 0; r < rest.num_rows(); ++r) {
    prompts.emplace_back(rest.row(r).prompt_ids.begin(), rest.row(r).prompt_ids.end());
    responses.emplace_back(rest.row(r).response_ids.begin(), rest.row(r).response_ids.end());
  }
  prompts_ = std::move(prompts);
  responses_ = std::move(responses);
  rest.move_ids(owned_rows(rest.group_index()));
  table_ = std::move(rest);
}

std::vector<TableRow> CarriedRows::owned_rows(std::span<const int64_t> groups) const {
  std::vector<TableRow> rows;
  for (size_t i = 0; i < groups.size(); ++i) rows.push_back({prompts_[i], responses_[i], groups[i]});
  return rows;
}

Result<> CarriedRows::save_state(StateWriter& writer) const {
  writer.put_int(kNumRows, size());
  if (size() == 0) return {};
  writer.put_vector(kGroups, std::vector<int64_t>(table_.group_index().begin(), table_.group_index().end()));
  save_ids(writer, kPrompts, kPromptLengths, prompts_);
  save_ids(writer, kResponses, kResponseLengths, responses_);
  table_.save_columns(writer);
  return {};
}

Result<> CarriedRows::load_state(StateReader& reader) {
  *this = {};
  const int64_t num_rows = TRY(reader.get_int(kNumRows));
  if (num_rows == 0) return {};
  const auto groups = TRY(reader.get_vector<int64_t>(kGroups));
  if (std::ssize(groups) != num_rows) return uneven();
  prompts_ = TRY(load_ids(reader, kPrompts, kPromptLengths, num_rows));
  responses_ = TRY(load_ids(reader, kResponses, kResponseLengths, num_rows));
  table_ = StepTable(owned_rows(groups));
  return table_.load_columns(reader);
}

}  // namespace mortise
