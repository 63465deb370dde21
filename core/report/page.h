// The report of one or more runs as one HTML file that needs no network: curves, findings, settings side by side,
// plugins, events and completions. Thread rule: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "report/diagnosis.h"
#include "report/history.h"

namespace mortise {

struct ReportRun {
  RunHistory history;
  std::vector<Finding> findings;
  std::map<int64_t, std::vector<Json>> completions;  // rows of the completion files, by step
};

// Reads the run, and at most `most_rows` of its completions: whole steps, the first and the newest, and others evenly
// between them.
Result<ReportRun> read_report_run(Env& env, const Path& folder, int64_t most_rows);

// What looks wrong in the run, without its page.
Result<std::vector<Finding>> find_faults(Env& env, const Path& folder);

// The whole page. A series of more than kMostPoints points is shown as means over equal parts.
inline constexpr size_t kMostPoints = 2000;
std::string report_page(const std::vector<ReportRun>& runs);

// {"runs": [{"name", "folder", "last_step", "findings"}]}
Json findings_json(const std::vector<ReportRun>& runs);

}  // namespace mortise
