// Loads the data sets of a run, and checks lengths, columns and rewards against them.
#include "train/run/run_data.h"

#include <fmt/core.h>

#include <mortise/pack.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "config/check.h"
#include "config/fields.h"
#include "experience/data/column_types.h"
#include "experience/data/sft_encoder.h"
#include "experience/reward/named_columns.h"
#include "foundation/base/at_place.h"
#include "foundation/base/log.h"
#include "foundation/base/rng.h"
#include "foundation/base/text.h"
#include "train/run/plugin_files.h"
#include "train/run/policy_folder.h"

namespace mortise {

RowReaderOptions reading_options(const DataConfig& data) {
  RowReaderOptions options;
  for (const char* name : {"messages", "prompt_token_ids"}) options.cells[name] = CellType::kJson;
  for (const auto& [name, type] : declared_columns(data.columns)) {
    if (type == ColumnType::kI64) options.cells[name] = CellType::kInteger;
    if (type == ColumnType::kF64) options.cells[name] = CellType::kNumber;
    if (type == ColumnType::kJson) options.cells[name] = CellType::kJson;
  }
  return options;
}

namespace {

// f(reward, its place in the list, a column that it reads) for each.
template <class F>
Result<> for_named_columns(const RowSource& rows, F&& f) {
  const std::vector<RewardConfig>& rewards = rows.loaded.config.reward;
  for (size_t i = 0; i < rewards.size(); ++i) {
    const PluginRef ref = TRY(rows.registry.find("reward", rewards[i].use));
    for (const NamedColumn& column : named_columns(*ref.plugin, rewards[i].params)) TRY(f(*ref.plugin, i, column));
  }
  return {};
}

// The optional keys of data rows, without the prompt's, that the command or a reward of the config reads.
Result<std::vector<std::string>> read_row_keys(const RowSource& rows) {
  std::vector<std::string> keys{"tools", "documents", "chat_template_kwargs"};
  if (rows.kind == RunKind::kSft) {
    keys.push_back(rows.loaded.config.data.response_key);
    return keys;
  }
  keys.insert(keys.end(), {"data_source", "reward_model", "extra_info", "ground_truth"});
  TRY(for_named_columns(rows, [&](const PluginInfo&, size_t, const NamedColumn& column) -> Result<> {
    keys.push_back(column.path);
    keys.push_back(column.row_key());
    return {};
  }));
  return keys;
}

Result<DatasetOptions> train_options(const RowSource& rows) {
  const DataConfig& data = rows.loaded.config.data;
  DatasetOptions options;
  options.filter_overlong_prompts = data.filter_overlong_prompts;
  options.vocab_size = rows.model.vocab_size;
  options.read_keys = TRY(read_row_keys(rows));
  options.files = data.train_files;
  options.max_samples = data.train_max_samples;
  options.key = "data.train_files";
  options.skip_bad_rows = data.on_bad_row == OnBadRow::kSkip;
  options.reading = reading_options(data);
  return options;
}

// Encodes with `encode`, and checks each row.
RowEncoder checked(RowEncoder encode, std::function<Result<>(const Prompt&, const std::string& where)> check) {
  return [encode = std::move(encode), check = std::move(check)](
             const Json& row, const std::string& where) -> Result<std::optional<Prompt>> {
    std::optional<Prompt> prompt = TRY(encode(row, where));
    if (prompt) TRY(check(*prompt, where));
    return prompt;
  };
}

// The generator takes no prompt behind which the longest completion does not fit.
Result<> check_length(const RunConfig& config, const ModelConfig& model, const Prompt& prompt,
                      const std::string& where) {
  const int64_t most = model.max_length();
  const int64_t room = most - response_length(config);
  const auto length = static_cast<int64_t>(prompt.token_ids.size());
  if (length <= room) return {};
  const std::string response = std::to_string(response_length(config));
  return Error{
      ErrorKind::kData,
      fmt::format("the prompt has {} tokens and a completion up to {} (rollout.response_length, else "
                  "data.max_response_length), the model has {} positions (max_position_embeddings)",
                  length, response, most),
      where,
      room < 1 ? "lower the length of completions"
               : fmt::format("lower the length of completions, or leave longer prompts out: data.max_prompt_length={} "
                             "data.filter_overlong_prompts=true",
                             room)};
}

// A row as a whole, which the learner would stop at.
Result<> check_whole_row(const ModelConfig& model, const Prompt& row, const std::string& where) {
  const int64_t most = model.max_length();
  const auto length = static_cast<int64_t>(row.token_ids.size() + row.response_ids.size());
  if (length <= most) return {};
  return Error{ErrorKind::kData,
               fmt::format("the row has {} tokens, the model has {} positions (max_position_embeddings)", length, most),
               where,
               fmt::format("leave such rows out with data.filter_overlong_prompts=true, chats above sft.max_length={}, "
                           "texts above data.max_prompt_length",
                           most)};
}

// The encoder of prompts that are sampled for.
RowEncoder sampled_row_encoder(const RowSource& rows, const DatasetOptions& options) {
  return checked(prompt_row_encoder(rows.encoder, options),
                 [config = &rows.loaded.config, model = &rows.model](const Prompt& prompt, const std::string& where) {
                   return check_length(*config, *model, prompt, where);
                 });
}

// The training rows, in memory or streamed.
Result<Dataset> read_train_rows(const RowSource& rows, const RowEncoder& encode, DatasetOptions options) {
  if (!rows.loaded.config.data.streaming) return Dataset::load(rows.env, encode, options);
  options.columns = declared_columns(rows.loaded.config.data.columns);
  TRY(for_named_columns(rows, [&](const PluginInfo&, size_t, const NamedColumn& column) -> Result<> {
    options.watched_columns.push_back(column.path);
    return {};
  }));
  return Dataset::scan(rows.env, encode, options);
}

bool scores_set(const RewardConfig& reward, const ValSet& set) {
  if (reward.used_in == RewardUse::kTrain) return false;
  return set.rewards.empty() || std::ranges::find(set.rewards, reward.name) != set.rewards.end();
}

Result<> check_reward_columns(const RowSource& rows, const Dataset* train, std::span<const ValRows> val) {
  return for_named_columns(rows, [&](const PluginInfo& reward, size_t i, const NamedColumn& column) -> Result<> {
    const RewardConfig& config = rows.loaded.config.reward[i];
    const std::string where = rows.loaded.where(fmt::format("reward.{}.{}", i, column.param));
    if (rows.kind == RunKind::kTrain && config.used_in != RewardUse::kValidation)
      TRY(at_place(where, check_named_column(column, reward, *train, "data.train_files")));
    for (const ValRows& one : val) {
      if (!scores_set(config, one.set)) continue;
      auto good = at_place(where, check_named_column(column, reward, one.rows, one.set.files_key));
      if (good.ok()) continue;
      if (rows.kind == RunKind::kEval) return good;
      log_warn(good.error().to_string());
    }
    return {};
  });
}

// The columns of data.train_files for a command that does not encode them. Files that are not there, or lines that do
// not parse, are that command's concern only when it trains.
void see_train_files(const RowSource& rows, ColumnCensus& census, std::vector<std::string>& places) {
  const DataConfig& data = rows.loaded.config.data;
  std::vector<DataFile> files;
  for (const std::string& entry : data.train_files) {
    const auto found = list_data_files(rows.env, {entry}, "data.train_files");
    if (found.ok()) files.insert(files.end(), found->begin(), found->end());
  }
  RowFiles reader(rows.env, std::move(files), reading_options(data), data.train_max_samples);
  while (true) {
    const auto row = reader.next();
    if (!row.ok() || !row->has_value()) return;
    const auto value = reader.parse(**row);
    if (!value.ok() || !value->is_object()) continue;
    const std::string place = reader.where((*row)->file, (*row)->row.number);
    if (data.filter_overlong_prompts) {  // a run does not see such rows
      const auto prompt = rows.encoder.encode(*value, place, rows.model.vocab_size);
      if (prompt.ok() && rows.encoder.is_overlong(*prompt)) continue;
    }
    census.see_row(rows.encoder.columns_of(*value), static_cast<int64_t>(places.size()));
    places.push_back(place);
  }
}

Result<ColumnTypes> decide_types(const RowSource& rows, const Dataset* train, std::span<const ValRows> val) {
  const RunConfig& config = rows.loaded.config;
  if (config.reward.empty()) return ColumnTypes();                    // nothing reads them
  const bool is_streamed = train != nullptr && train->is_streamed();  // their census was taken
  ColumnCensus census = is_streamed ? train->streamed().census : ColumnCensus(declared_columns(config.data.columns));
  std::vector<std::string> scanned;  // places of rows that are no prompts here
  if (rows.kind == RunKind::kEval && train == nullptr) see_train_files(rows, census, scanned);
  const auto num_scanned = static_cast<int64_t>(scanned.size());
  const int64_t num_train = train == nullptr ? 0 : train->size();
  for (int64_t row = 0; row < num_train && !is_streamed; ++row)
    census.see_row((*train)[row].columns, num_scanned + row);
  std::vector<std::pair<const Dataset*, int64_t>> val_places;  // where the validation rows are, in their order
  for (const ValRows& one : val) {
    for (int64_t row = 0; row < one.rows.size(); ++row) {
      census.see_row(one.rows[row].columns, num_scanned + num_train + static_cast<int64_t>(val_places.size()));
      val_places.emplace_back(&one.rows, row);
    }
  }
  std::vector<std::string> unseen = census.unseen();
  std::erase(unseen, config.data.prompt_key);  // declared for CSV files, and no column of rewards
  if (rows.kind == RunKind::kTrain && !unseen.empty()) {
    const std::vector<std::string> names = census.names();
    const std::string hint = did_you_mean(unseen.front(), names);
    return Error{ErrorKind::kConfig,
                 fmt::format("'data.columns' declares the column {}, and no data row has it", quote(unseen.front())),
                 rows.loaded.where("data.columns." + unseen.front()),
                 hint.empty() ? "the rows have " + join(names, ", ") : hint};
  }
  return census.decide([&](int64_t row) {
    if (row < num_scanned) return scanned[static_cast<size_t>(row)];
    row -= num_scanned;
    if (row < num_train) return train->where(row);
    const auto& [data, place] = val_places[static_cast<size_t>(row - num_train)];
    return data->where(place);
  });
}

// The columns that plugins say they cannot do without: each must be there before step 1.
Result<> check_needed_columns(const RowSource& rows, const ColumnTypes& types) {
  std::vector<std::string> names;
  for (const auto& [name, type] : types) names.push_back(name);
  for (const ToldReads& told : TRY(told_reads(rows.registry, rows.loaded.config))) {
    if (!told.key.starts_with("reward.")) continue;  // the others see no columns
    for (const NeededColumn& column : told.reads.columns) {
      if (std::ranges::find(names, column.name) != names.end()) continue;
      std::string next = did_you_mean(column.name, names);
      if (next.empty()) next = names.empty() ? "the rows have no columns" : "the rows have " + join(names, ", ");
      if (!column.next.empty()) next += "; " + column.next;
      return Error{ErrorKind::kData,
                   fmt::format("{} needs {}, and no data row has such a column", column.who, quote(column.name)),
                   rows.loaded.where(fmt::format("{}.{}", told.key, column.param)), next};
    }
  }
  return {};
}

PromptSourceOptions common_source_options(const RunConfig& config) {
  const DataConfig& data = config.data;
  PromptSourceOptions source;
  source.order.shuffle = data.shuffle;
  source.order.seed = static_cast<uint64_t>(data.seed.value_or(config.trainer.seed));
  source.order.weights = data.train_weights;
  source.order.stopping = data.stopping_strategy;
  source.order.curriculum_key = data.curriculum_key;
  source.order.curriculum_order = data.curriculum_order;
  source.order.curriculum_by_reward = data.curriculum_by_reward;
  source.order.shuffle_buffer_size = data.shuffle_buffer_size;
  return source;
}

}  // namespace

Result<Dataset> load_train_prompts(const RowSource& rows) {
  const RunConfig& config = rows.loaded.config;
  const DatasetOptions options = TRY(train_options(rows));
  // A backend that does without the engine has limits of its own: a replay holds what was sampled elsewhere.
  const auto backend = rows.registry.find("rollout_backend", config.rollout.name);
  const bool uses_engine = backend.ok() && (backend->plugin->flags & MORTISE_FLAG_NEEDS_ENGINE) != 0;
  const RowEncoder encode =
      uses_engine ? sampled_row_encoder(rows, options) : prompt_row_encoder(rows.encoder, options);
  Dataset data = TRY(read_train_rows(rows, encode, options));
  TRY(check_run_length(rows.loaded, data.size()));
  return data;
}

Result<std::vector<ValRows>> load_val_rows(const RowSource& rows) {
  const bool samples = !rows.loaded.config.reward.empty();
  std::vector<ValRows> out;
  for (ValSet& set : TRY(val_sets(rows.loaded))) {
    DatasetOptions options = TRY(train_options(rows));
    options.files = set.files;
    options.max_samples = set.max_samples;
    options.key = set.files_key;
    const RowEncoder encode = samples ? sampled_row_encoder(rows, options) : prompt_row_encoder(rows.encoder, options);
    Dataset data = TRY(Dataset::load(rows.env, encode, options));
    const std::string key = set.name.empty() ? "rollout.val_kwargs.n" : fmt::format("data.val_sets.{}.n", set.name);
    TRY(check_num_rows(rows.loaded, data.size(), set.kwargs.n, key));
    out.push_back({std::move(set), std::move(data)});
  }
  return out;
}

namespace {

Result<Dataset> read_recorded_rows(const RowSource& rows, const Tokenizer& tokenizer, DatasetOptions options) {
  const RunConfig& config = rows.loaded.config;
  SftEncoderOptions encoding;
  encoding.response_key = config.data.response_key;
  encoding.messages_key = config.data.messages_key;
  const std::vector<int64_t> stop_ids = stop_ids_of(rows.model, &tokenizer);
  if (!stop_ids.empty()) encoding.end_id = stop_ids.front();
  encoding.max_response_length = config.data.max_response_length;
  encoding.max_length = config.sft.max_length.value_or(config.data.max_prompt_length + config.data.max_response_length);
  encoding.filter_overlong = config.data.filter_overlong_prompts;
  encoding.assistant_only_loss = config.sft.assistant_only_loss;
  encoding.completion_only_loss = config.sft.completion_only_loss;
  encoding.vocab_size = options.vocab_size;
  const auto sft = std::make_shared<const SftEncoder>(TRY(SftEncoder::create(rows.encoder, std::move(encoding))));
  options.left_out = "that are too long, or hold nothing to learn within sft.max_length";
  const RowEncoder encode =
      checked([sft](const Json& row, const std::string& where) { return sft->encode(row, where); },
              [model = &rows.model](const Prompt& row, const std::string& where) {
                return check_whole_row(*model, row, where);
              });
  return read_train_rows(rows, encode, options);
}

}  // namespace

Result<Dataset> load_sft_rows(const RowSource& rows, const Tokenizer& tokenizer) {
  return read_recorded_rows(rows, tokenizer, TRY(train_options(rows)));
}

Result<std::optional<Dataset>> load_sft_mix_rows(const RowSource& rows, const Tokenizer& tokenizer) {
  const RunConfig& config = rows.loaded.config;
  if (!config.sft_mix.is_on()) return std::optional<Dataset>();
  RowSource recorded = rows;
  recorded.kind = RunKind::kSft;
  DatasetOptions options = TRY(train_options(recorded));
  options.files = config.sft_mix.files;
  options.key = "sft_mix.files";
  options.max_samples = DataConfig().train_max_samples;
  return std::optional(TRY(read_recorded_rows(recorded, tokenizer, std::move(options))));
}

Result<ColumnTypes> settle_columns(const RowSource& rows, const Dataset* train, std::span<const ValRows> val) {
  TRY(check_reward_columns(rows, train, val));
  ColumnTypes types = TRY(decide_types(rows, train, val));
  TRY(check_needed_columns(rows, types));
  return types;
}

PromptSourceOptions train_source_options(const RunConfig& config) {
  PromptSourceOptions source = common_source_options(config);
  source.batch_size = config.data.train_batch_size;
  if (config.algorithm.filter_groups.enable && config.data.gen_batch_size) {
    source.batch_size = *config.data.gen_batch_size;
    source.batch_size_key = "data.gen_batch_size";
  }
  return source;
}

PromptSourceOptions sft_source_options(const RunConfig& config) {
  PromptSourceOptions source = common_source_options(config);
  source.batch_size = config.sft.train_batch_size;
  source.batch_size_key = "sft.train_batch_size";
  return source;
}

PromptSourceOptions sft_mix_source_options(const RunConfig& config) {
  PromptSourceOptions source;
  source.order.seed = random_u64({common_source_options(config).order.seed, RandomPurpose::kSftMix});
  source.order.shuffle_buffer_size = config.data.shuffle_buffer_size;
  source.files_key = "sft_mix.files";
  source.state_name = "sft_mix.rows";
  return source;
}

}  // namespace mortise
