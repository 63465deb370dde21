// Reads the files of a run's folder.
#include "report/history.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "config/load.h"
#include "config/show.h"
#include "foundation/base/text.h"
#include "foundation/formats/jsonl.h"
#include "foundation/metrics/live_view.h"

namespace mortise {
namespace {

constexpr uint64_t kMostLogBytes = uint64_t{64} << 20;
constexpr size_t kMostEvents = 2000;

void add_row(const Json& row, RunHistory& run) {
  const auto step = row["step"].get<int64_t>();
  for (const auto& [name, value] : row.items()) {
    if (name == "step" || !(value.is_number() || value.is_null())) continue;
    const double number = value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
    MetricSeries& series = run.metrics[name];
    // A validation that was owed rewrites its step.
    if (!series.empty() && series.back().step == step)
      series.back().value = number;
    else
      series.push_back({step, number});
  }
  run.last_step = std::max(run.last_step, step);
}

Result<> read_metrics(Env& env, RunHistory& run) {
  const Path path = run.folder / "metrics.jsonl";
  if (!env.exists(run.folder))
    return Error{ErrorKind::kData, "this folder does not exist", run.folder.string(),
                 "name the folder of a run (trainer.default_local_dir)"};
  if (!env.exists(path))
    return Error{ErrorKind::kData, "there is no metrics.jsonl in this folder", run.folder.string(),
                 "name the folder of a run (trainer.default_local_dir)"};
  JsonlReader reader = TRY(JsonlReader::open(env, path));
  DamagedLines damaged{"metrics.jsonl"};
  bool has_rows = false;
  while (const std::optional<JsonlLine> line = reader.next_line()) {
    const std::optional<Json> row = metrics_row(line->text);
    if (line->is_ended) run.metrics_place = place_behind(line->offset, line->text);
    if (row)
      add_row(*row, run);
    else if (line->is_ended)
      damaged.add(line->line);
    has_rows = has_rows || row;
  }
  if (damaged.count == 0) return {};
  if (!has_rows)
    return Error{ErrorKind::kData, "no line of this file is a row of metrics: an object with an integer \"step\"",
                 fmt::format("{}:{}", path.string(), damaged.first_line),
                 "name the folder of a run (trainer.default_local_dir)"};
  run.damaged.push_back(std::move(damaged));
  return {};
}

void read_settings(Env& env, RunHistory& run) {
  const auto loaded = load_config(env, run.folder / "config.resolved.toml", {});
  if (!loaded.ok()) return;
  run.settings = flat_settings(loaded->config);
  RunConfig bare;
  bare.reward.resize(loaded->config.reward.size());  // each reward against the defaults of its keys
  const std::map<std::string, std::string> defaults = flat_settings(bare);
  for (const auto& [key, value] : run.settings) {
    const auto it = defaults.find(key);
    if (it == defaults.end() || it->second != value) run.changed_keys.push_back(key);
  }
}

void read_plugins(Env& env, RunHistory& run) {
  const auto lock = read_json_file(env, run.folder / "mortise.lock");
  const Json* uses = lock.ok() ? json_find(*lock, "uses") : nullptr;
  if (uses != nullptr && uses->is_array()) run.plugins = *uses;
}

void read_log(Env& env, RunHistory& run) {
  const auto text = env.read_file(run.folder / "log.txt", kMostLogBytes);
  if (!text.ok()) return;
  run.log_place = place_behind_lines(*text);
  const std::string_view whole = std::string_view(*text).substr(0, run.log_place.offset);
  for (const std::string_view line : split(trim(whole), '\n')) add_log_line(line, run.log_continues, run.events);
}

}  // namespace

std::string describe(const DamagedLines& damaged) {
  return damaged.count == 1 ? fmt::format("line {} of {} is damaged and left out", damaged.first_line, damaged.file)
                            : fmt::format("{} damaged lines of {} are left out; the first is line {}", damaged.count,
                                          damaged.file, damaged.first_line);
}

std::optional<Json> metrics_row(std::string_view line) {
  auto row = parse_json(line, "metrics.jsonl");
  if (!row.ok() || !row->is_object() || !json_int(*row, "step", "").ok()) return std::nullopt;
  return *std::move(row);
}

void add_log_line(std::string_view line, bool& continues, std::vector<RunEvent>& events) {
  const size_t first = line.find(' '), second = first == line.npos ? first : line.find(' ', first + 1);
  const std::string_view level = second == line.npos ? "" : line.substr(first + 1, second - first - 1);
  constexpr std::array<std::string_view, 4> kLevels = {"debug", "info", "warning", "error"};
  if (std::find(kLevels.begin(), kLevels.end(), level) == kLevels.end()) {
    if (continues && !events.empty()) events.back().text += "\n" + std::string(line);
    return;
  }
  const std::string_view text = line.substr(second + 1);
  continues = level == "warning" || level == "error" || text.starts_with("resumed from") ||
              text.find("the run ends early") != text.npos;
  if (continues && events.size() < kMostEvents)
    events.push_back({std::string(line.substr(0, first)), std::string(level), std::string(text)});
}

std::map<std::string, std::string> run_settings(Env& env, const Path& folder) {
  const auto loaded = load_config(env, folder / "config.resolved.toml", {});
  return loaded.ok() ? flat_settings(loaded->config) : std::map<std::string, std::string>();
}

// trainer.rollout_data_dir is relative to where the run was started, which is not known afterwards. The folder of its
// name in the run's own folder comes first: a run that was copied or moved has its own files, not those of the original.
std::map<int64_t, Path> find_completion_files(Env& env, const Path& folder,
                                              const std::map<std::string, std::string>& settings) {
  std::map<int64_t, Path> files;
  const auto setting = settings.find("trainer.rollout_data_dir");
  if (setting == settings.end()) return files;
  const auto value = parse_json(setting->second, "trainer.rollout_data_dir");
  if (!value.ok() || !value->is_string()) return files;
  const Path named = value->get<std::string>();
  const Path last = named.has_filename() ? named.filename() : named.parent_path().filename();  // "dump/" ends in none
  for (const Path& place : {folder / last, named}) {
    const auto names = env.list_dir(place);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      const auto step = parse_i64(Path(name).stem().string());
      if (step && Path(name).extension() == ".jsonl") files[*step] = place / name;
    }
    if (!files.empty()) break;
  }
  return files;
}

double mean_of(const MetricSeries& series, size_t begin, size_t end) {
  double sum = 0.0;
  size_t count = 0;
  for (size_t i = begin; i < end; ++i) {
    if (!std::isfinite(series[i].value)) continue;
    sum += series[i].value;
    ++count;
  }
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

const MetricSeries* RunHistory::find(std::string_view metric) const {
  const auto it = metrics.find(std::string(metric));
  return it == metrics.end() ? nullptr : &it->second;
}

// A run of a Mortise without live.json, or one that is just writing it, has no state.
std::string run_state(Env& env, const Path& folder) {
  const Path path = folder / "live.json";
  const auto json = read_json_file(env, path);
  if (!json.ok()) return {};
  const auto live = read_live_json(*json, path.string());
  return live.ok() ? live->state : std::string();
}

Result<RunHistory> read_run_history(Env& env, const Path& folder) {
  RunHistory run;
  run.folder = folder;
  run.name = folder.lexically_normal().filename().string();
  if (run.name.empty()) run.name = folder.lexically_normal().parent_path().filename().string();
  TRY(read_metrics(env, run));
  read_settings(env, run);
  read_plugins(env, run);
  read_log(env, run);
  run.state = run_state(env, folder);
  run.completion_files = find_completion_files(env, folder, run.settings);
  return run;
}

}  // namespace mortise
