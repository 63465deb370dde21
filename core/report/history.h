// What a run left in its folder, read for people: its metrics over the steps, settings, plugins, events of its log, and
// where its completions are. Reads metrics.jsonl, config.resolved.toml, mortise.lock, log.txt and live.json. A file that
// is missing leaves its part empty.
//
// Cost: one pass over the files; the metrics of all steps are held in memory (16 bytes each). Thread rule: free
// functions and plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/formats/json.h"
#include "report/file_tail.h"

namespace mortise {

struct MetricPoint {
  int64_t step = 0;
  double value = 0.0;  // NaN where the file has null: the number was not finite
};
using MetricSeries = std::vector<MetricPoint>;  // in the order of the steps

// The mean of the finite values in [begin, end); NaN if there is none.
[[nodiscard]] double mean_of(const MetricSeries& series, size_t begin, size_t end);

// A line of log.txt that people should see: warnings, errors, and where the run was resumed.
struct RunEvent {
  std::string time;  // "2026-11-24T00:18:07.963+00:00"
  std::string level;
  std::string text;
};

// Adds the event of a line of log.txt ("TIME LEVEL TEXT"), if it is one. A line of another form continues the text of
// the event before it where `continues` says so; begin with false.
void add_log_line(std::string_view line, bool& continues, std::vector<RunEvent>& events);

// Lines of one of the run's files that are no rows, as after a power loss. The report continues without them.
struct DamagedLines {
  std::string file;
  int64_t count = 0;
  int64_t first_line = 0;

  void add(int64_t line) {
    if (count++ == 0) first_line = line;
  }
};

// "2 damaged lines of metrics.jsonl are left out; the first is line 7".
std::string describe(const DamagedLines& damaged);

struct RunHistory {
  Path folder;
  std::string name;  // name of the folder
  std::map<std::string, MetricSeries> metrics;
  std::map<std::string, std::string> settings;  // every key of the run, as JSON text
  std::vector<std::string> changed_keys;        // settings that differ from Mortise's defaults
  Json plugins = Json::array();                 // {"kind", "name", "pack", "version", "sha256"}, as in mortise.lock
  std::vector<RunEvent> events;
  std::vector<DamagedLines> damaged;         // by file; only files that have such lines
  std::map<int64_t, Path> completion_files;  // by step: the files of trainer.rollout_data_dir
  int64_t last_step = 0;
  std::string state;  // from live.json: "running", "done", "stopped", "failed"; empty if it is not known
  // How far the files were read, for what follows them (run_follower.h).
  TailPlace metrics_place, log_place;
  bool log_continues = false;  // the next line of the log may continue the last event

  // Null if the run does not have the metric.
  [[nodiscard]] const MetricSeries* find(std::string_view metric) const;
};

// Every key of the run, as JSON text; empty if config.resolved.toml is missing, or is of another version of Mortise with
// settings that this one does not know.
std::map<std::string, std::string> run_settings(Env& env, const Path& folder);

// RunHistory::state.
std::string run_state(Env& env, const Path& folder);

// The files of trainer.rollout_data_dir, by step.
std::map<int64_t, Path> find_completion_files(Env& env, const Path& folder,
                                              const std::map<std::string, std::string>& settings);

// The row of a line of metrics.jsonl: an object with an integer `step`. Nothing: the line is damaged.
std::optional<Json> metrics_row(std::string_view line);

// An Error if the folder has no metrics.jsonl, or if all of its lines are damaged. Other damaged lines are counted. A
// last line without an end, which the run is still writing, may be incomplete.
Result<RunHistory> read_run_history(Env& env, const Path& folder);

}  // namespace mortise
