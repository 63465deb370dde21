// See run_follower.h.
#include "report/run_follower.h"

#include <fmt/core.h>

#include <utility>

#include "foundation/base/text.h"
#include "foundation/metrics/live_view.h"
#include "report/page.h"

namespace mortise {
namespace {

constexpr int64_t kFindingsPeriod_ns = 2'000'000'000;

std::string run_place(const TailPlace& metrics, const TailPlace& log, bool log_continues) {
  return fmt::format("{}.{}.{}.{}.{}", metrics.offset, metrics.mark, log.offset, log.mark, log_continues ? 1 : 0);
}

struct RunPlace {
  TailPlace metrics, log;
  bool log_continues = false;
};

std::optional<RunPlace> read_run_place(std::string_view text) {
  const auto parts = split(text, '.');
  if (parts.size() != 5) return std::nullopt;
  const auto metrics = parse_u64(parts[0]), log = parse_u64(parts[2]);
  if (!metrics || !log) return std::nullopt;
  return RunPlace{{*metrics, std::string(parts[1])}, {*log, std::string(parts[3])}, parts[4] == "1"};
}

Json event_json(const RunEvent& event) { return {{"time", event.time}, {"level", event.level}, {"text", event.text}}; }

}  // namespace

std::string place_of(const std::vector<const RunHistory*>& runs) {
  std::vector<std::string> places;
  for (const RunHistory* run : runs)
    places.push_back(run_place(run->metrics_place, run->log_place, run->log_continues));
  return join(places, "~");
}

Json completion_steps(const std::map<int64_t, Path>& files) {
  Json steps = Json::array();
  for (const auto& [step, path] : files) steps.push_back({{"step", step}});
  return steps;
}

const Json& FindingsCache::of(Env& env, const Path& folder) {
  Entry& entry = entries_[folder];
  if (!env.exists(folder / "metrics.jsonl")) return entry.findings;
  std::string seen = run_state(env, folder);
  for (const char* file : {"metrics.jsonl", "log.txt"})
    if (const auto info = env.info(folder / file); info.ok())
      seen += fmt::format(" {} {}", info->size_bytes, info->modified_ns);
  const int64_t now = env.monotonic_ns();
  if (seen == entry.seen || (entry.computed_ns != 0 && now - entry.computed_ns < kFindingsPeriod_ns))
    return entry.findings;
  const auto found = find_faults(env, folder);
  entry.computed_ns = now;
  if (!found.ok()) return entry.findings;  // a row is half written
  entry = {std::move(seen), now, findings_list(*found)};
  return entry.findings;
}

RunFollower::RunFollower(Env& env, const std::vector<Path>& folders, std::string_view place, FindingsCache& findings)
    : env_(&env), findings_(&findings) {
  const auto places = split(place, '~');
  for (size_t i = 0; i < folders.size(); ++i) {
    const auto at = places.size() == folders.size() ? read_run_place(places[i]) : std::nullopt;
    is_lost_ = is_lost_ || !at;
    const RunPlace from = at.value_or(RunPlace());
    runs_.push_back({folders[i], FileTail(env, folders[i] / "metrics.jsonl", from.metrics),
                     FileTail(env, folders[i] / "log.txt", from.log), from.log_continues});
  }
}

std::string RunFollower::place() const {
  std::vector<std::string> places;
  for (const Run& run : runs_) places.push_back(run_place(run.metrics.place(), run.log.place(), run.log_continues));
  return join(places, "~");
}

void RunFollower::read_metrics(size_t i, std::vector<RunNews>& out) {
  const auto lines = runs_[i].metrics.read();
  if (!lines) {
    is_lost_ = true;
    return;
  }
  Json rows = Json::array();
  int64_t num_damaged = 0;
  for (const std::string& line : *lines) {
    if (trim(line).empty()) continue;
    if (auto row = metrics_row(line))
      rows.push_back(*std::move(row));
    else
      ++num_damaged;
  }
  if (rows.empty() && num_damaged == 0) return;
  out.push_back({"metrics", place(), {{"run", i}, {"rows", std::move(rows)}, {"num_damaged", num_damaged}}});
}

void RunFollower::read_log(size_t i, std::vector<RunNews>& out) {
  Run& run = runs_[i];
  const auto lines = run.log.read();
  if (!lines) {
    is_lost_ = true;
    return;
  }
  std::vector<RunEvent> events(1);  // the first is the last one that was told
  for (const std::string& line : *lines) add_log_line(line, run.log_continues, events);
  Json all = Json::array();
  for (size_t k = 1; k < events.size(); ++k) all.push_back(event_json(events[k]));
  if (all.empty() && events[0].text.empty()) return;
  out.push_back({"log", place(), {{"run", i}, {"continues", events[0].text}, {"events", std::move(all)}}});
}

void RunFollower::read_status(size_t i, std::vector<RunNews>& out) {
  Run& run = runs_[i];
  const Path path = run.folder / "live.json";
  const auto json = read_json_file(*env_, path);
  if (!json.ok()) return;  // a run without it, or one that is just writing it
  const auto state = read_live_json(*json, path.string());
  if (!state.ok()) return;
  std::string text = dump_json(*json);
  if (text == run.status) return;
  run.status = std::move(text);
  Json data = live_json(*state);
  data.erase("rewards");
  data.erase("time_ns");
  data["run"] = i;
  data["age_s"] = static_cast<double>(env_->wall_time_ns() - state->time_ns) / 1e9;
  out.push_back({"status", "", std::move(data)});
}

void RunFollower::read_findings(size_t i, std::vector<RunNews>& out) {
  Run& run = runs_[i];
  const Json& findings = findings_->of(*env_, run.folder);
  std::string text = dump_json(findings);
  if (text == run.findings) return;
  run.findings = std::move(text);
  out.push_back({"findings", "", {{"run", i}, {"findings", findings}}});
}

// A file that could not be read is read again when it has changed.
void RunFollower::read_settings(Run& run) {
  const auto info = env_->info(run.folder / "config.resolved.toml");
  if (!info.ok() || info->modified_ns == run.settings_ns) return;
  run.settings_ns = info->modified_ns;
  run.settings = run_settings(*env_, run.folder);
}

void RunFollower::read_steps(size_t i, std::vector<RunNews>& out) {
  Run& run = runs_[i];
  if (run.settings.empty()) read_settings(run);
  const auto files = find_completion_files(*env_, run.folder, run.settings);
  if (files.size() == run.num_steps) return;
  run.num_steps = files.size();
  out.push_back({"steps", "", {{"run", i}, {"steps", completion_steps(files)}}});
}

std::vector<RunNews> RunFollower::read() {
  std::vector<RunNews> out;
  if (has_reset_) return out;
  for (size_t i = 0; i < runs_.size() && !is_lost_; ++i) {
    read_metrics(i, out);
    read_log(i, out);
    if (is_lost_) break;
    read_status(i, out);
    read_findings(i, out);
    read_steps(i, out);
  }
  if (!is_lost_) return out;
  has_reset_ = true;
  return {{"reset", "", Json::object()}};
}

}  // namespace mortise
