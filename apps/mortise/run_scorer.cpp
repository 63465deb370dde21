// See run_scorer.h.
#include "run_scorer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "config/check.h"
#include "experience/data/row_files.h"
#include "experience/plugin_settings.h"
#include "experience/reward/reward_specs.h"
#include "foundation/base/signal.h"
#include "foundation/base/text.h"
#include "serve/api/call_fields.h"
#include "train/run/run_data.h"
#include "train/run/run_parts.h"

namespace mortise {
namespace {

constexpr int64_t kMostRowsRead = 20'000;  // that decide the types of columns

std::vector<DataFile> existing_files(Env& env, const RunConfig& config) {
  std::vector<DataFile> files;
  for (const std::vector<std::string>* entries : {&config.data.train_files, &config.data.val_files}) {
    for (const std::string& entry : *entries) {
      const auto found = list_data_files(env, {entry}, "data.train_files");
      if (found.ok()) files.insert(files.end(), found->begin(), found->end());
    }
  }
  return files;
}

Json number_or_null(double value) { return std::isnan(value) ? Json() : Json(value); }

Json reward_json(const RewardColumn& column) {
  Json extra = Json::object();
  for (const auto& [name, values] : column.extra) {
    if (!std::isnan(values.front())) extra[name] = values.front();
  }
  for (const auto& [name, texts] : column.texts) {
    if (!texts.front().empty()) extra[name] = texts.front();
  }
  return {{"name", column.name},
          {"weight", column.weight},
          {"value", number_or_null(column.values.front())},
          {"error", std::string(column.error(0))},
          {"extra", std::move(extra)}};
}

// The page's form "text" has prompts that a run with a system prompt or several turns refuses.
PromptEncoder for_texts(const PromptEncoder& encoder) {
  PromptEncoderOptions options = encoder.options();
  options.system_prompt.clear();
  options.only_chats = false;
  return PromptEncoder(encoder.tokenizer(), {}, std::move(options));
}

Result<FinishReason> finish_reason_of(CallFields& fields) {
  const auto name = TRY(fields.text("finish_reason"));
  for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort}) {
    if (!name || *name == finish_reason_name(reason)) return reason;
  }
  return bad_field("finish_reason", "must be stop, length or abort");
}

}  // namespace

std::vector<std::string> data_files_of(Env& env, const RunConfig& config) {
  std::vector<std::string> names;
  for (const DataFile& file : existing_files(env, config)) names.push_back(file.path.string());
  return names;
}

RunScorer::RunScorer(Env& env, LoadedConfig loaded, PolicyFolder folder)
    : env_(&env),
      loaded_(std::move(loaded)),
      folder_(std::move(folder)),
      encoder_(folder_.encoder(loaded_.config)),
      text_encoder_(for_texts(encoder_)),
      census_(declared_columns(loaded_.config.data.columns)) {
  RowFiles reader(env, existing_files(env, loaded_.config), reading_options(loaded_.config.data), kMostRowsRead);
  while (true) {
    const auto row = reader.next();
    if (!row.ok() || !row->has_value()) return;
    const auto value = reader.parse(**row);
    if (!value.ok() || !value->is_object()) continue;
    census_.see_row(encoder_.columns_of(*value), static_cast<int64_t>(places_.size()));
    places_.push_back(reader.where((*row)->file, (*row)->row.number));
  }
}

Result<std::unique_ptr<RunScorer>> RunScorer::create(Env& env, LoadedConfig loaded) {
  PolicyFolder folder = TRY(PolicyFolder::load(env, loaded.config));
  return std::unique_ptr<RunScorer>(new RunScorer(env, std::move(loaded), std::move(folder)));
}

Result<> RunScorer::start_rewards() {
  if (rewards_) return {};
  const RunConfig& config = loaded_.config;
  if (config.reward.empty())
    return Error{ErrorKind::kConfig, "the run has no rewards", loaded_.file,
                 "choose a checkpoint of a run with a [[reward]] table"};
  if (!registry_) registry_ = TRY(open_registry(loaded_));
  const std::string_view kinds[] = {"reward"};
  TRY(check_plugins(*registry_, loaded_, kinds));
  Json max_steps;  // as in a run that sets its length
  if (config.trainer.total_training_steps) max_steps = *config.trainer.total_training_steps;
  const std::vector<RewardSpec> specs = TRY(reward_specs(loaded_, *registry_, max_steps));
  RunKey key;
  key.seed = static_cast<uint64_t>(config.trainer.seed);
  key.cancelled = &stop_flag();
  key.check_writes = config.plugins.check;
  key.call_timeout_ms = config.plugins.call_timeout.count();
  // A row that fails is an answer here, and ends nothing.
  rewards_ = TRY(RewardRunner::create(*registry_, specs, key, 1.0, isolation_options(config.plugins)));
  return {};
}

Result<Json> RunScorer::data_row(const Json& body) const {
  CallFields fields(body);
  fields.ignore({"run"});
  const std::string wanted = TRY(fields.text("file")).value_or("");
  const int64_t number = TRY(fields.integer("number", 1, 1, int64_t{1} << 40));
  TRY(fields.check_all_read());
  std::vector<DataFile> files = existing_files(*env_, loaded_.config);
  std::erase_if(files, [&](const DataFile& file) { return file.path.string() != wanted; });
  if (files.empty()) return bad_field("file", "is not one of the run's data files");
  files.resize(1);
  RowFiles reader(*env_, std::move(files), reading_options(loaded_.config.data));
  TRY(reader.skip(number - 1));
  const std::optional<FileRow> row = TRY(reader.next());
  if (!row) return bad_field("number", fmt::format("is {}, but the file has {} rows", number, reader.num_read()));
  const Json value = TRY(reader.parse(*row));
  const Prompt prompt = TRY(encoder_.encode(value, reader.where(row->file, row->row.number), 0));
  Json out = {{"columns", prompt.columns}};
  if (prompt.messages.empty())
    out["prompt"] = prompt.text;
  else
    out["messages"] = TRY(parse_json(prompt.messages, "messages"));
  return out;
}

// A column has the type that the run's data gives it; one that the data lacks has that of its value.
Result<ColumnTypes> RunScorer::column_types(const Json& columns) const {
  ColumnCensus census = census_;
  const auto own = static_cast<int64_t>(places_.size());
  census.see_row(columns, own);
  return census.decide(
      [&](int64_t row) { return row == own ? std::string("the data columns") : places_[static_cast<size_t>(row)]; });
}

Result<Sample> RunScorer::sample_of(const Json& body) const {
  CallFields fields(body);
  fields.ignore({"run", "prompt", "columns"});
  Sample sample;
  sample.finish_reason = TRY(finish_reason_of(fields));
  const std::string text = TRY(fields.text("completion")).value_or("");
  sample.token_ids = TRY(fields.ids("token_ids"));
  TRY(fields.check_all_read());
  const int64_t vocab_size = folder_.tokenizer.vocab_size();
  for (const int64_t id : sample.token_ids) {
    if (id < 0 || id >= vocab_size)
      return bad_field("token_ids", fmt::format("has {}, outside the vocabulary of {}", id, vocab_size));
  }
  if (sample.token_ids.empty()) sample.token_ids = TRY(folder_.tokenizer.encode(text, /*add_special_tokens=*/false));
  if (sample.token_ids.empty()) return bad_field("completion", "is empty", "sample or type one first");
  sample.text = folder_.tokenizer.decode(sample.token_ids, /*skip_special_tokens=*/true);
  return sample;
}

Result<Json> RunScorer::score(const Json& body) {
  TRY(start_rewards());
  const Json *prompt = json_find(body, "prompt"), *columns = json_find(body, "columns");
  if (prompt == nullptr) return bad_field("prompt", "is missing");
  if (columns != nullptr && !columns->is_object()) return bad_field("columns", "must be an object");
  Json row = columns == nullptr ? Json::object() : *columns;
  row.erase("prompt_token_ids");
  row[loaded_.config.data.prompt_key] = *prompt;
  PromptBatch prompts;
  const PromptEncoder& encoder = prompt->is_string() ? text_encoder_ : encoder_;
  prompts.prompts.push_back(TRY(encoder.encode(row, "the prompt", 0)));
  SampleBatch samples;
  samples.rows.push_back(TRY(sample_of(body)));
  rewards_->use_columns(TRY(column_types(prompts.prompts.front().columns)));
  ScoreContext context;
  context.max_response_length = response_length(loaded_.config);
  const ScoredBatch scored = TRY(rewards_->score(prompts, samples, context, nullptr));
  Json rewards = Json::array();
  for (const RewardColumn& column : scored.columns) rewards.push_back(reward_json(column));
  return Json{{"score", number_or_null(scored.rewards.front())}, {"rewards", std::move(rewards)}};
}

}  // namespace mortise
