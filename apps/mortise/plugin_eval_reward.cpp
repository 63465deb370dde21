// `mortise plugin eval reward`: rows of a JSONL file through one reward function.
//
// A row is {"prompt", "completion", ...}: prompt is text or a list of messages; completion is text or a message. The
// members prompt_token_ids, completion_token_ids, finish_reason, messages and group_index are what the engine would
// give; every other member is a data column. All rows are one batch. The reward runs as in a run: in workers, where the
// machine has what they need.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/formats/json_number.h"
#include "foundation/formats/jsonl.h"
#include "foundation/metrics/registry.h"
#include "plugin_eval.h"

namespace mortise {
namespace {

constexpr std::string_view kOwnKeys[] = {"prompt",           "completion",           "messages",
                                         "prompt_token_ids", "completion_token_ids", "finish_reason",
                                         "group_index",      "sample_index"};

bool is_own_key(std::string_view key) {
  return std::find(std::begin(kOwnKeys), std::end(kOwnKeys), key) != std::end(kOwnKeys);
}

class RowReader {
 public:
  // `place`: of the row in the file, counted from 0.
  RowReader(const std::filesystem::path& path, const JsonlRow& row, size_t place)
      : row_(row.value), where_(fmt::format("{}:{}", path.string(), row.line)), place_(static_cast<int64_t>(place)) {}

  // A row without a group is its own group.
  [[nodiscard]] Result<int64_t> group() const {
    if (!row_.is_object()) return bad("the row is not an object", "write {\"prompt\": ..., \"completion\": ...}");
    return integer("group_index", place_);
  }

  // `in_group`: how many rows of each group the batch has.
  Result<> append_to(RewardBatch& batch, std::map<int64_t, int64_t>& in_group) const {
    TRY(append_prompt(batch));
    batch.completion.append(TRY(completion()));
    batch.prompt_ids.append(TRY(ids("prompt_token_ids")));
    batch.completion_ids.append(TRY(ids("completion_token_ids")));
    batch.finish_reason.push_back(TRY(finish_reason()));
    const int64_t group = TRY(this->group());
    const int64_t place = in_group[group]++;
    batch.group_index.push_back(group);
    batch.sample_index.push_back(TRY(integer("sample_index", place)));
    batch.row_id.push_back(batch.num_rows);
    ++batch.num_rows;
    return {};
  }

 private:
  [[nodiscard]] Error bad(std::string what, std::string next = "") const {
    return {ErrorKind::kData, std::move(what), where_, std::move(next)};
  }

  // Text of a list of messages: their contents, a line each. A chat template needs a tokenizer, which is not here.
  Result<std::string> contents(const Json& messages) const {
    std::string text;
    for (const Json& message : messages) {
      const Json* content = json_find(message, "content");
      if (content == nullptr || !content->is_string())
        return bad("a message has no text 'content'", "write {\"role\": ..., \"content\": \"...\"}");
      text += (text.empty() ? "" : "\n") + content->get<std::string>();
    }
    return text;
  }

  Result<> append_prompt(RewardBatch& batch) const {
    const Json* messages = json_find(row_, "messages");
    const Json* prompt = json_find(row_, "prompt");
    if (messages == nullptr && prompt != nullptr && prompt->is_array()) messages = prompt;
    if (messages != nullptr && !messages->is_array()) return bad("'messages' is not a list", "");
    batch.messages.append(messages == nullptr ? std::string() : dump_json(*messages));
    if (prompt != nullptr && prompt->is_string()) {
      batch.prompt.append(prompt->get_ref<const std::string&>());
    } else if (messages != nullptr) {
      batch.prompt.append(TRY(contents(*messages)));
    } else if (prompt == nullptr || prompt->is_null()) {
      batch.prompt.append("");
    } else {
      return bad("'prompt' must be text or a list of messages");
    }
    return {};
  }

  Result<std::string> completion() const {
    const Json* completion = json_find(row_, "completion");
    if (completion == nullptr) return bad("'completion' is missing", "every row needs the text that is scored");
    if (completion->is_string()) return completion->get<std::string>();
    if (completion->is_array()) return contents(*completion);
    return bad("'completion' must be text or a list of messages");
  }

  Result<std::vector<int64_t>> ids(const char* key) const {
    std::vector<int64_t> out;
    const Json* values = json_find(row_, key);
    if (values == nullptr) return out;
    if (!values->is_array()) return bad(quote(key) + " must be a list of token ids");
    for (const Json& value : *values) {
      if (!is_i64(value)) return bad(quote(key) + " must be a list of token ids");
      out.push_back(value.get<int64_t>());
    }
    return out;
  }

  Result<int32_t> finish_reason() const {
    const Json* value = json_find(row_, "finish_reason");
    if (value == nullptr || value->is_null()) return static_cast<int32_t>(FinishReason::kStop);
    for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort}) {
      if (value->is_string() && value->get_ref<const std::string&>() == finish_reason_name(reason))
        return static_cast<int32_t>(reason);
    }
    return bad("'finish_reason' must be stop, length or abort, is " + quote(dump_json(*value)));
  }

  Result<int64_t> integer(const char* key, int64_t otherwise) const {
    const Json* value = json_find(row_, key);
    if (value == nullptr || value->is_null()) return otherwise;
    if (!is_i64(*value)) return bad(quote(key) + " must be an integer of 64 bits");
    return value->get<int64_t>();
  }

  const Json& row_;
  std::string where_;
  int64_t place_;
};

struct Rows {
  RewardBatch batch;
  std::vector<Json> values;
  std::vector<size_t> place;  // where the file's rows are in the batch
};

// Rows of a group side by side, as a run gives them; groups in the order of first sight.
Result<std::vector<size_t>> batch_order(const std::filesystem::path& path, const std::vector<JsonlRow>& lines) {
  std::vector<size_t> rank, order;
  std::map<int64_t, size_t> first;
  for (size_t i = 0; i < lines.size(); ++i) {
    const int64_t group = TRY(RowReader(path, lines[i], i).group());
    rank.push_back(first.try_emplace(group, i).first->second);
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rank[a] < rank[b]; });
  return order;
}

// Every other name that occurs in any row is a column, typed as in a run.
Result<> add_columns(const std::filesystem::path& path, const std::vector<JsonlRow>& lines,
                     const DeclaredColumns& declared, Rows& rows) {
  ColumnCensus census(declared);
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const auto& item : rows.values[rows.place[i]].items()) {
      if (!is_own_key(item.key())) census.see(item.key(), item.value(), static_cast<int64_t>(i));
    }
  }
  const auto where = [&](int64_t i) { return fmt::format("{}:{}", path.string(), lines[static_cast<size_t>(i)].line); };
  for (const auto& [name, type] : TRY(census.decide(where))) {
    std::vector<const Json*> values;
    for (const Json& row : rows.values) values.push_back(json_find(row, name));
    rows.batch.columns.push_back(DataColumn::from_json(name, type, values));
  }
  return {};
}

Result<Rows> read_rows(const std::filesystem::path& path, const DeclaredColumns& declared) {
  std::vector<JsonlRow> lines;
  JsonlReader reader = TRY(JsonlReader::open(default_env(), path));
  while (auto row = TRY(reader.next())) lines.push_back(std::move(*row));
  Rows rows;
  rows.place.resize(lines.size());
  std::map<int64_t, int64_t> in_group;
  for (const size_t i : TRY(batch_order(path, lines))) {
    rows.place[i] = rows.values.size();
    TRY(RowReader(path, lines[i], i).append_to(rows.batch, in_group));
    rows.values.push_back(std::move(lines[i].value));
  }
  TRY(add_columns(path, lines, declared, rows));
  return rows;
}

// Calls f(item) for each item of the row. The list is in the order of rows.
template <class Of, class F>
void for_row(const std::vector<Of>& all, int64_t row, const F& f) {
  for (auto at = std::ranges::lower_bound(all, row, {}, &Of::row); at != all.end() && at->row == row; ++at) f(*at);
}

Json result_row(const RewardOutput& out, size_t row) {
  const auto at = static_cast<int64_t>(row);
  Json json = Json::object();
  json["reward"] = std::isnan(out.rewards[row]) ? Json() : Json(out.rewards[row]);
  if (row < out.token_rewards.size()) json["token_rewards"] = out.token_rewards[row];
  for_row(out.failed_rows, at, [&](const FailedRow& failed) { json["error"] = failed.text; });
  for_row(out.row_values, at, [&](const RowValue& value) {
    json["values"][value.name] = value.text ? Json(*value.text) : Json(value.value);
  });
  return json;
}

// Rows are counted from 0 as the file has them.
void tell_failures(const std::string& reward, const RewardOutput& out, const Rows& rows, const PluginEval& eval) {
  if (out.failed_rows.empty()) return;
  std::vector<int64_t> row_in_file(rows.place.size());
  for (size_t i = 0; i < rows.place.size(); ++i) row_in_file[rows.place[i]] = static_cast<int64_t>(i);
  std::vector<FailedRow> failed = out.failed_rows;
  for (FailedRow& row : failed) row.row = row_in_file[static_cast<size_t>(row.row)];
  std::ranges::sort(failed, {}, &FailedRow::row);
  log_warn(fmt::format("{}: failed on {} of {} rows; first: {}; 'error' of each row is in {}", reward, failed.size(),
                       rows.place.size(), failures_text(failed), eval.outputs.string()));
}

}  // namespace

Result<Json> eval_reward(PluginRegistry& registry, const PluginEval& eval) {
  const PluginRef ref = TRY(registry.find("reward", eval.name));
  const Json params = TRY(plugin_params(*ref.plugin, eval, is_no_engine_key));
  const auto reward = TRY(make_reward_function(registry, eval.name, params, {eval.seed, nullptr}, eval.isolation));
  Rows rows = TRY(read_rows(eval.inputs, eval.columns));
  rows.batch.step = eval.step;
  MetricSet metrics;
  const ScoreRequest request{rows.batch.num_rows, eval.step, eval.timeout_ms, eval.row_timeout_ms};
  const RewardOutput out = TRY(reward->score(request, rows.batch, &metrics));
  NewJsonlFile file = TRY(NewJsonlFile::create(default_env(), eval.outputs));
  for (const size_t row : rows.place) TRY(file.write(result_row(out, row)));
  TRY(file.commit());
  tell_failures(reward->label(), out, rows, eval);
  const bool scored = std::any_of(out.rewards.begin(), out.rewards.end(), [](double r) { return !std::isnan(r); });
  if (!scored && out.failed_rows.empty() && rows.batch.num_rows > 0) {
    log_warn(
        "the reward applies to no row. Check that the data column that it reads is there, is of the type that it "
        "reads, and is not null. Columns: " +
        columns_phrase(rows.batch.columns));
  }
  Json json = Json::object();
  for (const MetricValue& metric : metrics.values()) json[metric.name] = metric.value;
  return json;
}

}  // namespace mortise
