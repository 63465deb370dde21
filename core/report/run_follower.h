// RunFollower: what is new in the folders of runs, as events for a page that shows them (docs/playground.md).
//
//   metrics   {"run", "rows"}: new rows of metrics.jsonl
//   log       {"run", "continues", "events"}: new events of log.txt; "continues" is more text of the last one
//   status    {"run", "state", "step", "total_steps", "headline", "stages", "age_s"}, as in live.json
//   findings  {"run", "findings"}: of the whole run, when they change
//   steps     {"run", "steps"}: all steps that have completions, when there are more
//   reset     a file was replaced: the page must be made again
//
// A place says how far the first two are, and an event of theirs has the place behind it: a follower that begins there
// sees what came since, once. The others say how things are now. Thread rule: one thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "report/file_tail.h"
#include "report/history.h"

namespace mortise {

struct RunNews {
  std::string name;
  std::string place;  // empty: unchanged
  Json data;
};

// The findings of runs, computed again when a run has more rows or lines of its log, or ends, and for all followers.
class FindingsCache {
 public:
  // As in the page; an empty list as long as the run has no row.
  const Json& of(Env& env, const Path& folder);

 private:
  struct Entry {
    std::string seen;  // the files that they are about, and the run's state
    int64_t computed_ns = 0;
    Json findings = Json::array();
  };
  std::map<Path, Entry> entries_;
};

// The place behind everything that the histories hold.
std::string place_of(const std::vector<const RunHistory*>& runs);

// [{"step"}] of the files, as the page has them.
Json completion_steps(const std::map<int64_t, Path>& files);

class RunFollower {
 public:
  // Borrows the cache. A place that is none of these runs gives a reset.
  RunFollower(Env& env, const std::vector<Path>& folders, std::string_view place, FindingsCache& findings);

  // What is new since the last call.
  std::vector<RunNews> read();

 private:
  struct Run {
    Path folder;
    FileTail metrics, log;
    bool log_continues = false;
    std::string status{}, findings{};  // as they were told
    std::map<std::string, std::string> settings{};
    int64_t settings_ns = 0;  // when the file that was read last was written
    size_t num_steps = 0;     // that were told
  };
  void read_metrics(size_t i, std::vector<RunNews>& out);
  void read_log(size_t i, std::vector<RunNews>& out);
  void read_status(size_t i, std::vector<RunNews>& out);
  void read_findings(size_t i, std::vector<RunNews>& out);
  void read_settings(Run& run);
  void read_steps(size_t i, std::vector<RunNews>& out);
  [[nodiscard]] std::string place() const;

  Env* env_;
  FindingsCache* findings_;
  std::vector<Run> runs_;
  bool is_lost_ = false;  // the place is none of these files
  bool has_reset_ = false;
};

}  // namespace mortise
