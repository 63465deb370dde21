// Opens the files of a run, and writes steps, updates and completions to them.
#include "train/report/run_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "checkpoint/retention.h"
#include "config/show.h"
#include "foundation/base/log.h"
#include "foundation/base/rename_target.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/signal.h"
#include "foundation/base/text.h"
#include "foundation/formats/jsonl.h"
#include "foundation/metrics/live.h"
#include "foundation/metrics/trackers.h"
#include "learn/objective/loss_settings.h"
#include "train/resume/pack_lock.h"

namespace mortise {

namespace {

// One line of text for a table cell.
std::string cell(std::string_view text, size_t width) {
  std::string out = shorten(one_line(text), width);
  out.resize(width, ' ');
  return out;
}

// The content of a message: a text, or parts, some of which have a text.
std::string content_text(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  if (!content.is_array()) return text;
  for (const Json& part : content) {
    const Json* words = part.is_object() ? json_find(part, "text") : nullptr;
    if (words != nullptr && words->is_string()) text += (text.empty() ? "" : " ") + words->get<std::string>();
  }
  return text;
}

// The text that identifies a prompt: the user's last turn of a chat, because the system prompt is often the same in all
// rows; else the whole text.
std::string telling_text(const Prompt& prompt) {
  if (prompt.messages.empty()) return prompt.text;
  const auto messages = parse_json(prompt.messages, "messages");
  if (!messages.ok() || !messages->is_array()) return prompt.text;
  for (auto message = messages->rbegin(); message != messages->rend(); ++message) {
    if (!message->is_object()) continue;
    const Json* role = json_find(*message, "role");
    const Json* content = json_find(*message, "content");
    if (role == nullptr || content == nullptr || *role != "user") continue;
    std::string text = content_text(*content);
    return text.empty() ? prompt.text : text;
  }
  return prompt.text;
}

// The completions of a named validation set have a folder of their own.
Path folder_of_set(const Path& dir, const std::string& set) { return set.empty() ? dir : dir / set; }

Path step_file(const Path& dir, int64_t step) { return dir / (std::to_string(step) + ".jsonl"); }

// A full disk alone does not end a run by its numbers: a sink keeps what it could not write.
Result<> unless_the_disk_is_full(Result<> written) {
  if (written.ok() || written.error().kind != ErrorKind::kDisk) return written;
  log_warn_once("numbers wait in memory until they can be written: " + written.error().what);
  return {};
}

// Drops the rows after `last`, and logs what is lost. `is_whole`: there should be a row for each number to
// `last`.
Result<> keep_rows(Env& env, const Path& path, std::string_view key, int64_t last, bool is_whole) {
  if (is_whole && last > 0 && !env.exists(path))
    log_warn(fmt::format("{} is missing: the new one begins with {} {}", path.string(), key, last + 1));
  const KeptRows rows = TRY(keep_jsonl_rows(env, path, key, last));
  if (is_whole && env.exists(path) && rows.last_key.value_or(0) < last) {
    log_warn(fmt::format("{}: the rows after {} {} are gone; the next one is {}", path.string(), key,
                         rows.last_key.value_or(0), last + 1));
  }
  if (rows.num_damaged > 0) {
    log_warn(
        fmt::format("{}:{}: {}{} damaged, as after a power loss. The file as it was is now {}; the rows that can be "
                    "read are kept.",
                    path.string(), rows.first_damaged_line, rows.num_damaged,
                    rows.num_damaged == 1 ? " line is" : " lines are", rows.set_aside.string()));
  }
  return {};
}

// The rows that the run has written so far.
Result<std::vector<MetricRow>> written_rows(Env& env, const Path& path) {
  std::vector<MetricRow> rows;
  if (!env.exists(path)) return rows;
  JsonlReader reader = TRY(JsonlReader::open(env, path));
  while (const std::optional<JsonlRow> line = TRY(reader.next())) {
    MetricRow row;
    for (const auto& [name, value] : line->value.items()) {
      if (name == "step" && value.is_number_integer())
        row.keys.emplace_back(name, value.get<int64_t>());
      else
        row.values.push_back({name, value.is_number() ? value.get<double>() : std::nan("")});
    }
    if (!row.keys.empty()) rows.push_back(std::move(row));
  }
  return rows;
}

// `continues`: the rows of metrics.jsonl are those of this run.
Result<TrackedRun> tracked_run(Env& env, const RunConfig& config, bool continues) {
  TrackedRun run;
  run.dir = config.trainer.default_local_dir;
  run.project = config.trainer.project_name;
  const std::string folder = run.dir.lexically_normal().filename().string();
  run.experiment = config.trainer.experiment_name.value_or(folder.empty() ? "mortise" : folder);
  run.config = config_to_json(config);
  run.settings = flat_settings(config);
  run.resumed = continues;
  if (continues) run.earlier = TRY(written_rows(env, run.dir / "metrics.jsonl"));
  return run;
}

Result<std::unique_ptr<MetricSink>> make_tracker(Env& env, LogTarget target, const TrackedRun& run) {
  switch (target) {
    case LogTarget::kWandb:
      return make_wandb_sink(env, run);
    case LogTarget::kMlflow:
      return make_mlflow_sink(env, run);
    default:
      return make_prometheus_sink(env, run);
  }
}

// A row per reject, and the number of those that were not kept.
Result<> write_rejects(Env& env, const Path& path, const std::vector<const Rejects*>& all) {
  int64_t num = 0, num_kept = 0;
  for (const Rejects* rejects : all) num += rejects->num;
  if (num == 0) return {};
  NewJsonlFile file = TRY(NewJsonlFile::create(env, path));
  for (const Rejects* rejects : all) {
    for (const Error& error : rejects->kept)
      TRY(file.write(Json{{"where", error.where}, {"what", error.what}, {"next", error.next}}));
    num_kept += static_cast<int64_t>(rejects->kept.size());
  }
  if (num > num_kept) TRY(file.write(Json{{"num_more", num - num_kept}}));
  return file.commit();
}

}  // namespace

Result<RunLog> RunLog::open(Env& env, const LoadedConfig& loaded, const PluginRegistry* registry,
                            const RunLogOptions& options) {
  const TrainerConfig& trainer = loaded.config.trainer;
  const Path dir = trainer.default_local_dir;
  TRY(create_dirs_synced(env, dir));
  FolderLock lock = TRY(FolderLock::take(dir));
  LogOptions log_options;
  log_options.file = dir / "log.txt";
  TRY(log_init(log_options));
  for (const std::string& warning : remove_leftovers(env, dir)) log_warn(warning);  // a run killed here saves no more
  const bool resumed = options.resumed && !options.only_validates;
  const bool keeps = resumed || options.only_validates;
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  if (keeps) {  // without a resume only a half-written last line is dropped
    TRY(keep_rows(env, dir / "metrics.jsonl", "step", resumed ? options.first_step : kAll, resumed));
    TRY(keep_rows(env, dir / "updates.jsonl", "update", resumed ? options.first_update : kAll, false));
  }
  if (!options.only_validates || !env.exists(dir / "config.resolved.toml")) {
    ShowOptions show;
    if (registry != nullptr) show.remarks = loss_remarks(*registry, loaded);
    TRY(write_file_atomic(env, dir / "config.resolved.toml", config_to_toml(loaded, show)));
    if (registry != nullptr) TRY(write_file_atomic(env, dir / "mortise.lock", pack_lock_text(*registry, loaded)));
  }
  TRY(write_rejects(env, dir / "rejects.jsonl", options.rejects));

  RunLog log(env);
  log.lock_ = std::move(lock);
  const bool has_console = std::ranges::find(trainer.logger, LogTarget::kConsole) != trainer.logger.end();
  live_begin(env, {dir / "live.json", has_console, options.first_step, options.total_steps});
  log.metrics_ = TRY(make_jsonl_sink(env, dir / "metrics.jsonl", keeps));
  log.updates_ = TRY(make_jsonl_sink(env, dir / "updates.jsonl", keeps));
  std::optional<TrackedRun> tracked;
  for (const LogTarget target : trainer.logger) {
    if (target == LogTarget::kConsole) {
      ConsoleOptions console;
      console.total_steps = options.total_steps;
      console.first_step = options.first_step;
      console.plain_every_s = 5;
      log.others_.push_back(make_console_sink(env, console));
    } else if (target == LogTarget::kTensorboard) {
      const int64_t begin = options.only_validates ? kAll : resumed ? options.first_step + 1 : 0;
      log.others_.push_back(TRY(make_tensorboard_sink(env, dir, begin)));
    } else {
      if (!tracked) tracked = TRY(tracked_run(env, loaded.config, keeps));
      log.others_.push_back(TRY(make_tracker(env, target, *tracked)));
    }
  }
  log.rollout_data_dir_ = trainer.rollout_data_dir.value_or("");
  log.num_completions_to_print_ = trainer.num_completions_to_print;
  log.num_validation_to_print_ = trainer.log_val_generations;
  log.validation_data_dir_ = trainer.validation_data_dir.value_or("");
  for (const std::string& folder : {log.rollout_data_dir_, log.validation_data_dir_}) {
    if (!folder.empty()) TRY(log.completions_.open_folder(folder));
  }
  return log;
}

Result<RunLog> RunLog::open_silent(Env& env, const TrainerConfig& trainer, int rank) {
  LogOptions options;
  options.console_level = LogLevel::kError;
  options.file = Path(trainer.default_local_dir) / fmt::format("rank_{}.log", rank);
  TRY(log_init(options));
  RunLog log(env);
  log.is_silent_ = true;
  return log;
}

Result<> RunLog::write_update(int64_t update, int64_t step, const std::vector<MetricValue>& values) {
  if (is_silent_) return {};
  return unless_the_disk_is_full(updates_->write({{{"update", update}, {"step", step}}, values}));
}

Result<> RunLog::write_step(int64_t step, const MetricSet& metrics) {
  if (is_silent_) return {};
  const MetricRow row{{{"step", step}}, metrics.values()};
  live_numbers(row);
  TRY(unless_the_disk_is_full(metrics_->write(row)));
  for (const auto& sink : others_) TRY(unless_the_disk_is_full(sink->write(row)));
  return {};
}

Result<> RunLog::write_samples(int64_t step, const PromptBatch& prompts, const SampleBatch& samples,
                               const ScoredBatch& scored, const StepTable* table) {
  if (is_silent_) return {};
  if (num_completions_to_print_ > 0) {
    log_info(fmt::format("completions of step {}\n{}", step,
                         completions_table(prompts, samples, scored, table, num_completions_to_print_)));
  }
  if (rollout_data_dir_.empty()) return {};
  return completions_.write(step_file(rollout_data_dir_, step),
                            {step, prompts, samples, scored, table, tokenizer_, num_token_rows_});
}

void RunLog::log_validation(int64_t step, const MetricSet& metrics) {
  if (is_silent_) return;
  for (const MetricValue& metric : metrics.values()) {  // the others are in metrics.jsonl
    if (metric.name.starts_with("val-core/"))
      log_info(fmt::format("validation after step {}: {} {}", step, metric.name, metric.value));
  }
}

Result<> RunLog::write_validation(int64_t step, const std::string& set, const PromptBatch& prompts,
                                  const SampleBatch& samples, const ScoredBatch& scored) {
  if (is_silent_) return {};
  if (num_validation_to_print_ > 0) {
    log_info(fmt::format("validation{} after step {}\n{}", set.empty() ? "" : " of " + set, step,
                         completions_table(prompts, samples, scored, nullptr, num_validation_to_print_)));
  }
  if (validation_data_dir_.empty()) return {};
  const Path folder = folder_of_set(validation_data_dir_, set);
  if (!set.empty()) TRY(completions_.open_folder(folder));
  return completions_.write(step_file(folder, step), {step, prompts, samples, scored, nullptr});
}

void RunLog::keep_failed_batches_of(RewardRunner& reward) {
  if (is_silent_) return;
  reward.keep_failed_batches([this](const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                                    const ScoreContext& context) -> Result<std::optional<Path>> {
    if (context.is_validation)
      TRY(write_validation(context.step, context.val_set, prompts, samples, scored));
    else
      TRY(write_samples(context.step, prompts, samples, scored, nullptr));
    TRY(completions_.flush());
    const std::string& dir = context.is_validation ? validation_data_dir_ : rollout_data_dir_;
    return dir.empty() ? std::optional<Path>() : step_file(folder_of_set(dir, context.val_set), context.step);
  });
}

Result<std::optional<Path>> write_eval_completions(Env& env, const TrainerConfig& trainer, const std::string& set,
                                                   const PromptBatch& prompts, const SampleBatch& samples,
                                                   const ScoredBatch& scored) {
  if (trainer.log_val_generations > 0)
    log_info("completions\n" + completions_table(prompts, samples, scored, nullptr, trainer.log_val_generations));
  if (!trainer.validation_data_dir) return std::optional<Path>();
  const Path folder = folder_of_set(*trainer.validation_data_dir, set);
  TRY(env.create_dirs(folder));
  const Path path = folder / "eval.jsonl";
  TRY(write_completions(env, path, {0, prompts, samples, scored, nullptr}));
  log_info("the completions are in " + path.string());
  return std::optional<Path>(path);
}

// Every file gets its turn, also behind one that fails; the first failure counts.
Result<> RunLog::sync() {
  if (is_silent_) return {};
  Result<> first = completions_.flush();
  const auto keep = [&first](Result<> done) {
    if (first.ok()) first = std::move(done);
  };
  for (const auto& sink : others_) keep(sink->sync());
  keep(updates_->sync());
  keep(metrics_->sync());
  return first;
}

Result<> RunLog::close() {
  if (is_silent_) return {};
  live_end(stop_requested() ? "stopped" : "done");
  Result<> first = completions_.flush();
  const auto keep = [&first](Result<> done) {
    if (first.ok()) first = std::move(done);
  };
  for (const auto& sink : others_) keep(sink->close());
  keep(updates_->close());
  keep(metrics_->close());
  return first;
}

std::string completions_table(const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                              const StepTable* table, int64_t max_rows) {
  constexpr size_t kPromptWidth = 32, kCompletionWidth = 40;
  std::string out = fmt::format("{}  {}  reward{}\n", cell("prompt", kPromptWidth),
                                cell("completion", kCompletionWidth), table != nullptr ? "  advantage" : "");
  const auto rows = std::min(samples.rows.size(), static_cast<size_t>(std::max<int64_t>(0, max_rows)));
  for (size_t i = 0; i < rows; ++i) {
    const Sample& sample = samples.rows[i];
    char numbers[64];
    std::snprintf(numbers, sizeof numbers, "%6.3f", scored.rewards[i]);
    out += fmt::format("{}  {}  {}",
                       cell(telling_text(prompts.prompts[static_cast<size_t>(sample.prompt_index)]), kPromptWidth),
                       cell(sample.text, kCompletionWidth), numbers);
    if (table != nullptr) {
      std::snprintf(numbers, sizeof numbers, "  %9.3f", static_cast<double>(first_advantage(*table, i)));
      out += numbers;
    }
    out += "\n";
    for (const RewardColumn& column : scored.columns) {
      if (const std::string_view error = column.error(i); !error.empty())
        out += fmt::format("  ^ {} failed: {}\n", column.name, one_line(error));
    }
  }
  return out;
}

}  // namespace mortise
