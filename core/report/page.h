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
Json findings_list(const std::vector<Finding>& findings);

// The rows of a file of completions, as the page shows them. Damaged lines are counted; the last line may be incomplete,
// because a run may still write it.
struct ShownRows {
  std::vector<Json> rows;
  DamagedLines damaged;
};
Result<ShownRows> read_shown_rows(Env& env, const Path& path);

// The whole page. A series of more than kMostPoints points is shown as means over equal parts.
inline constexpr size_t kMostPoints = 2000;
std::string report_page(const std::vector<ReportRun>& runs);

// The same page for `mortise serve --ui`: it follows the runs from where the histories end, and asks the server for
// completions when somebody looks at them.
std::string live_report_page(const std::vector<ReportRun>& runs);
// The page that samples with checkpoints of the runs. What it can choose from, it asks the server.
std::string playground_page();

// {"runs": [{"name", "folder", "last_step", "damaged", "findings"}]}
Json findings_json(const std::vector<ReportRun>& runs);

}  // namespace mortise
