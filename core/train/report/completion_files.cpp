// See completion_files.h.
#include "train/report/completion_files.h"

#include <fmt/core.h>

#include <cmath>
#include <functional>
#include <string_view>
#include <utility>

#include "foundation/base/log.h"
#include "foundation/base/rename_target.h"
#include "foundation/base/text.h"
#include "foundation/formats/jsonl.h"

namespace mortise {
namespace {

Json number_or_null(double value) { return std::isnan(value) ? Json(nullptr) : Json(value); }

// Why each function failed on the row, by its name; null where it did not.
Json errors_of(const ScoredBatch& scored, size_t row) {
  Json errors = Json::object();
  for (const RewardColumn& column : scored.columns) {
    const std::string_view error = column.error(row);
    errors[column.name] = error.empty() ? Json(nullptr) : Json(error);
  }
  return errors;
}

// Adds the messages of a row with several turns, and which of its tokens were sampled.
void add_turns(const SampleTurns& turns, Json& row) {
  const auto messages = parse_json(turns.messages, "messages of a row");
  row["turns"] = messages.ok() ? *messages : Json::array();
  row["turns_end"] = turn_end_name(turns.end);
  row["num_tool_calls"] = turns.num_tool_calls;
  row["num_failed_tool_calls"] = turns.num_failed_calls;
  row["response_mask"] = turns.is_sampled;
  if (!turns.failure.empty()) row["environment_error"] = turns.failure;
}

Json completion_row(const Completions& all, size_t i) {
  const Sample& sample = all.samples.rows[i];
  const Prompt& prompt = all.prompts.prompts[static_cast<size_t>(sample.prompt_index)];
  Json row{{"step", all.step}, {"input", prompt.text}, {"output", sample.text}};
  if (const Json* truth = json_find(prompt.columns, "ground_truth")) row["gts"] = *truth;
  row["score"] = number_or_null(all.scored.rewards[i]);
  Json rewards = Json::object();
  for (const RewardColumn& column : all.scored.columns) {
    rewards[column.name] = number_or_null(column.values[i]);
    for (const auto& [name, values] : column.extra) row[name] = number_or_null(values[i]);
  }
  row["rewards"] = rewards;
  row["errors"] = errors_of(all.scored, i);
  const auto& token_scores = all.scored.token_scores;
  if (!token_scores.empty() && !token_scores[i].empty()) row["token_scores"] = token_scores[i];
  if (all.table != nullptr) row["advantage"] = first_advantage(*all.table, i);
  row["finish_reason"] = finish_reason_name(sample.finish_reason);
  row["prompt_index"] = sample.prompt_index;
  row["sample_index"] = sample.sample_index;
  row["weight_version"] = sample.weight_version;
  const SampleTurns& turns = sample.turns;
  row["prompt_token_ids"] = turns.prompt_ids.empty() ? prompt.token_ids : turns.prompt_ids;
  row["token_ids"] = sample.token_ids;
  if (turns.num_assistant > 0) add_turns(turns, row);
  return row;
}

Result<> for_each_row(const Completions& all, const std::function<Result<>(const Json&)>& write) {
  for (size_t i = 0; i < all.samples.rows.size(); ++i) TRY(write(completion_row(all, i)));
  return {};
}

// The temporary name of a file STEP.jsonl.
bool is_unfinished_file(std::string_view name) {
  const size_t dot = name.find(".jsonl.");
  if (!is_temporary_name(name) || dot == std::string_view::npos) return false;
  const std::string_view step = name.substr(0, dot);
  return parse_i64(step.substr(step.rfind('_') + 1)).has_value();
}

}  // namespace

float first_advantage(const StepTable& table, size_t row) {
  const auto of_row = table.of_row<column::Advantages>(static_cast<int64_t>(row));
  return of_row.empty() ? 0.0F : of_row.front();
}

Result<> write_completions(Env& env, const Path& path, const Completions& completions) {
  NewJsonlFile file = TRY(NewJsonlFile::create(env, path));
  TRY(for_each_row(completions, [&](const Json& row) { return file.write(row); }));
  return file.commit();
}

Result<> CompletionFiles::open_folder(const Path& folder) {
  TRY(create_dirs_synced(*env_, folder));
  for (const std::string& name : TRY(env_->list_dir(folder))) {
    if (is_unfinished_file(name)) TRY(env_->unlink(folder / name));
  }
  return {};
}

Result<> CompletionFiles::write(const Path& path, const Completions& completions) {
  Result<> written = flush();
  if (written.ok()) written = write_completions(*env_, path, completions);
  if (written.ok() || written.error().kind != ErrorKind::kDisk) return written;
  if (waiting_.size() >= kMaxWaiting) {
    Error error = std::move(written).error();
    error.what = fmt::format("the completions of {} steps could not be written: {}", kMaxWaiting + 1, error.what);
    return error;
  }
  log_warn(fmt::format("the completions of step {} wait in memory until they can be written: {}", completions.step,
                       written.error().to_string()));
  std::string& text = waiting_[path];
  text.clear();
  return for_each_row(completions, [&](const Json& row) -> Result<> {
    text += dump_json(row) + "\n";
    return {};
  });
}

Result<> CompletionFiles::flush() {
  while (!waiting_.empty()) {
    TRY(write_file_atomic(*env_, waiting_.begin()->first, waiting_.begin()->second));
    waiting_.erase(waiting_.begin());
  }
  return {};
}

}  // namespace mortise
