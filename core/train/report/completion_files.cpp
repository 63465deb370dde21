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

// Which version of the weights sampled which tokens: [start, end) of each.
Json versions_of(const std::vector<VersionSpan>& spans) {
  Json list = Json::array();
  int64_t start = 0;
  for (const auto& [version, num_tokens] : spans) {
    list.push_back({{"version", version}, {"start", start}, {"end", start + num_tokens}});
    start += num_tokens;
  }
  return list;
}

// Five digits: these numbers are for looking at.
Json shown_number(float value) {
  if (!std::isfinite(value)) return nullptr;
  return parse_f64(fmt::format("{:.5g}", value)).value_or(0.0);
}

template <class C>
void add_numbers(const StepTable& table, int64_t row, std::string_view name, Json& tokens) {
  if (!table.has<C>()) return;
  Json& numbers = tokens[std::string(name)] = Json::array();
  for (const float value : table.of_row<C>(row)) numbers.push_back(shown_number(value));
}

// The ratio of the last update that looked at the token. Without old_log_prob, a step has one update, which began at the
// policy that sampled.
Json ratios_of(const StepTable& table, int64_t row) {
  const auto last = table.of_row<column::LastLogProb>(row);
  const auto old =
      table.has<column::OldLogProb>() ? table.of_row<column::OldLogProb>(row) : table.of_row<column::FirstLogProb>(row);
  Json ratios = Json::array();
  for (size_t t = 0; t < last.size(); ++t) ratios.push_back(shown_number(std::exp(last[t] - old[t])));
  return ratios;
}

// A token that ends in the middle of a character has the character at the token that completes it.
Json texts_of_tokens(const Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  IncrementalDecoder decoder = tokenizer.incremental_decoder();
  Json texts = Json::array();
  for (const int64_t id : ids) texts.push_back(decoder.push(id));
  if (!ids.empty()) texts.back() = texts.back().get<std::string>() + decoder.finish();
  return texts;
}

Json tokens_of(const Completions& all, size_t i) {
  const auto row = static_cast<int64_t>(i);
  Json tokens{{"text", texts_of_tokens(*all.tokenizer, all.samples.rows[i].token_ids)}};
  add_numbers<column::Advantages>(*all.table, row, "advantage", tokens);
  add_numbers<column::RolloutLogProb>(*all.table, row, column::RolloutLogProb::name, tokens);
  if (!all.table->has<column::LastLogProb>()) return tokens;  // only the critic learns in this step
  add_numbers<column::FirstLogProb>(*all.table, row, "log_prob", tokens);
  add_numbers<column::LastEntropy>(*all.table, row, "entropy", tokens);
  tokens["ratio"] = ratios_of(*all.table, row);
  add_numbers<column::LastClipped>(*all.table, row, "clipped", tokens);
  return tokens;
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
    for (const auto& [name, texts] : column.texts) row[name] = texts[i];
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
  if (prompt.sampled_in_step > 0) row["sampled_in_step"] = prompt.sampled_in_step;
  if (!sample.spans.empty()) row["weight_versions"] = versions_of(sample.spans);
  const SampleTurns& turns = sample.turns;
  row["prompt_token_ids"] = turns.prompt_ids.empty() ? prompt.token_ids : turns.prompt_ids;
  row["token_ids"] = sample.token_ids;
  if (!sample.log_prob.empty()) row[all.samples.is_filtered ? "filtered_log_probs" : "log_probs"] = sample.log_prob;
  if (turns.num_assistant > 0) add_turns(turns, row);
  if (all.table != nullptr && all.tokenizer != nullptr && static_cast<int64_t>(i) < all.num_token_rows)
    row["tokens"] = tokens_of(all, i);
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
