// Puts the runs as JSON into the page of assets/.
#include "report/page.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "foundation/base/text.h"
#include "foundation/formats/jsonl.h"
#include "report/run_follower.h"
#include "report_assets.h"

namespace mortise {
namespace {

// A '<' inside a script element could end it, whatever the completion's text is.
std::string script_json(const Json& value) {
  std::string out;
  for (const char c : dump_json(value)) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

// [[steps], [values]], null where the number is not finite.
Json series_json(const MetricSeries& series) {
  Json steps = Json::array(), values = Json::array();
  const size_t parts = std::min(series.size(), kMostPoints);
  for (size_t part = 0; part < parts; ++part) {
    const size_t begin = part * series.size() / parts, end = (part + 1) * series.size() / parts;
    const double mean = mean_of(series, begin, end);
    steps.push_back(series[end - 1].step);
    values.push_back(std::isnan(mean) ? Json() : Json(mean));
  }
  return Json::array({std::move(steps), std::move(values)});
}

Json finding_json(const Finding& finding) {
  return {{"rule", finding.rule},
          {"title", finding.title},
          {"evidence", finding.evidence},
          {"advice", finding.advice},
          {"docs", docs_of(finding)}};
}

Json damaged_list(const RunHistory& history) {
  Json list = Json::array();
  for (const DamagedLines& damaged : history.damaged) list.push_back(describe(damaged));
  return list;
}

// The end of the path that has so many names: "a/train" for two.
std::string end_of(const Path& folder, size_t num_names) {
  Path out, rest = folder.lexically_normal();
  if (!rest.has_filename()) rest = rest.parent_path();
  for (size_t i = 0; i < num_names && rest.has_filename(); ++i) {
    out = out.empty() ? rest.filename() : rest.filename() / out;
    rest = rest.parent_path();
  }
  return out.string();
}

// Each run is called by the name of its folder, or by more of its path if another one has that name. The same folder
// may be given twice.
std::vector<std::string> names_apart(const std::vector<ReportRun>& runs) {
  constexpr size_t kMostNames = 8;
  std::vector<std::string> names;
  for (const ReportRun& run : runs) names.push_back(run.history.name);
  for (size_t num_names = 2; num_names <= kMostNames; ++num_names) {
    const std::vector<std::string> before = names;
    for (size_t i = 0; i < runs.size(); ++i)
      if (std::ranges::count(before, before[i]) > 1) names[i] = end_of(runs[i].history.folder, num_names);
  }
  return names;
}

Json run_json(const ReportRun& run, const std::string& shown_name) {
  const RunHistory& history = run.history;
  Json out = {{"name", shown_name}, {"folder", history.folder.string()}, {"last_step", history.last_step}};
  Json& metrics = out["metrics"] = Json::object();
  for (const auto& [name, series] : history.metrics) metrics[name] = series_json(series);
  out["settings"] = history.settings;
  out["changed"] = history.changed_keys;
  out["plugins"] = history.plugins;
  Json& events = out["events"] = Json::array();
  for (const RunEvent& event : history.events)
    events.push_back({{"time", event.time}, {"level", event.level}, {"text", event.text}});
  out["findings"] = findings_list(run.findings);
  out["damaged"] = damaged_list(history);
  Json& steps = out["completion_steps"] = Json::array();
  for (const auto& [step, rows] : run.completions) steps.push_back({{"step", step}, {"rows", rows.size()}});
  out["all_completion_steps"] = history.completion_files.size();
  return out;
}

// The steps whose files are read, so that the first and the newest are there and the rest lies evenly between them.
std::vector<int64_t> chosen_steps(const std::map<int64_t, Path>& files, size_t most) {
  std::vector<int64_t> all;
  for (const auto& [step, path] : files) all.push_back(step);
  if (all.size() <= most) return all;
  std::set<int64_t> chosen;
  for (size_t i = 0; i < most; ++i) chosen.insert(all[most == 1 ? all.size() - 1 : i * (all.size() - 1) / (most - 1)]);
  return {chosen.begin(), chosen.end()};
}

// Token ids are for programs.
Json shown_row(Json row) {
  const size_t tokens = row.contains("token_ids") ? row["token_ids"].size() : 0;
  row.erase("prompt_token_ids");
  row.erase("token_ids");
  row.erase("token_scores");
  row["num_tokens"] = tokens;
  return row;
}

// The rows of a file; what is damaged in it goes into the history.
Result<std::vector<Json>> take_rows(Env& env, const Path& path, RunHistory& history) {
  ShownRows shown = TRY(read_shown_rows(env, path));
  if (shown.damaged.count > 0) history.damaged.push_back(std::move(shown.damaged));
  return std::move(shown.rows);
}

std::vector<ScoredText> texts_of(const std::vector<Json>& rows) {
  std::vector<ScoredText> out;
  for (const Json& row : rows) {
    const Json *prompt = json_find(row, "prompt_index"), *text = json_find(row, "output");
    if (prompt == nullptr || !prompt->is_number_integer() || text == nullptr || !text->is_string()) continue;
    out.push_back({prompt->get<int64_t>(), text->get<std::string>()});
  }
  return out;
}

struct Part {
  std::string_view mark;
  std::string_view text;
};

// The template with each mark replaced. The marks come in this order, and are looked for in the template alone: a
// completion may hold the same text.
std::string fill(std::string_view page, const std::vector<Part>& parts) {
  std::string out;
  for (const Part& part : parts) {
    const size_t at = page.find(part.mark);
    out += page.substr(0, at);
    out += part.text;
    page.remove_prefix(at + part.mark.size());
  }
  return out += page;
}

// What comes before the body. `policy`: more of the content security policy.
std::string head_of(std::string_view title, std::string_view policy) {
  return fill(assets::kHeadHtml, {{"; POLICY", policy}, {"TITLE", title}, {"/*STYLE*/", assets::kReportCss}});
}

struct PageKind {
  std::string_view policy;         // more of the content security policy
  std::string_view live = "null";  // JSON: where the events begin
  std::string_view token, follow;  // scripts of a page on a server
};

std::string fill_report(const Json& runs, const std::string& rows, const PageKind& kind) {
  const std::string data = script_json(runs);
  return head_of("Mortise report", kind.policy) + fill(assets::kReportHtml, {{"<!--ROWS-->", rows},
                                                                             {"\"DATA\"", data},
                                                                             {"\"LIVE\"", kind.live},
                                                                             {"/*CHART*/", assets::kChartJs},
                                                                             {"/*TOKEN*/", kind.token},
                                                                             {"/*SCRIPT*/", assets::kReportJs},
                                                                             {"/*BROWSER*/", assets::kCompletionsJs},
                                                                             {"/*FOLLOW*/", kind.follow}});
}

constexpr std::string_view kServedPolicy = "; connect-src 'self'; base-uri 'none'; form-action 'none'";

}  // namespace

Result<ShownRows> read_shown_rows(Env& env, const Path& path) {
  ShownRows out;
  out.damaged.file = path.filename().string();
  JsonlReader reader = TRY(JsonlReader::open(env, path));
  while (const std::optional<JsonlLine> line = reader.next_line()) {
    auto row = reader.parse(*line);
    if (row.ok() && row->is_object())
      out.rows.push_back(shown_row(*std::move(row)));
    else if (line->is_ended)
      out.damaged.add(line->line);
  }
  return out;
}

Json findings_list(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) list.push_back(finding_json(finding));
  return list;
}

Result<ReportRun> read_report_run(Env& env, const Path& folder, int64_t most_rows) {
  ReportRun run;
  run.history = TRY(read_run_history(env, folder));
  std::vector<ScoredText> newest;
  if (!run.history.completion_files.empty()) {
    const auto& [last, path] = *run.history.completion_files.rbegin();
    std::vector<Json> rows = TRY(take_rows(env, path, run.history));
    newest = texts_of(rows);
    const auto per_step = static_cast<int64_t>(std::max<size_t>(1, rows.size()));
    run.completions[last] = std::move(rows);
    const auto most_steps = static_cast<size_t>(std::max<int64_t>(1, most_rows / per_step));
    for (const int64_t step : chosen_steps(run.history.completion_files, most_steps))
      if (step != last) run.completions[step] = TRY(take_rows(env, run.history.completion_files.at(step), run.history));
  }
  run.findings = diagnose(run.history, newest);
  return run;
}

Result<std::vector<Finding>> find_faults(Env& env, const Path& folder) {
  const RunHistory history = TRY(read_run_history(env, folder));
  std::vector<ScoredText> newest;
  if (!history.completion_files.empty())
    newest = texts_of(TRY(read_shown_rows(env, history.completion_files.rbegin()->second)).rows);
  return diagnose(history, newest);
}

std::string report_page(const std::vector<ReportRun>& runs) {
  Json all = Json::array();
  std::string rows;
  const std::vector<std::string> names = names_apart(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    all.push_back(run_json(runs[i], names[i]));
    // One element per step: the page parses a step when somebody looks at it.
    for (const auto& [step, completions] : runs[i].completions)
      rows += fmt::format("<script type=\"application/json\" id=\"rows-{}-{}\">{}</script>\n", i, step,
                          script_json(Json(completions)));
  }
  return fill_report(all, rows, {});
}

std::string live_report_page(const std::vector<ReportRun>& runs) {
  Json all = Json::array();
  std::vector<const RunHistory*> histories;
  const std::vector<std::string> names = names_apart(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    histories.push_back(&runs[i].history);
    Json& json = all.emplace_back(run_json(runs[i], names[i]));
    json["completion_steps"] = completion_steps(runs[i].history.completion_files);
  }
  const std::string live = script_json({{"since", place_of(histories)}});
  return fill_report(all, "", {kServedPolicy, live, assets::kTokenJs, assets::kLiveJs});
}

std::string playground_page() {
  return head_of("Mortise playground", kServedPolicy) +
         fill(assets::kPlaygroundHtml, {{"/*TOKEN*/", assets::kTokenJs}, {"/*SCRIPT*/", assets::kPlaygroundJs}});
}

Json findings_json(const std::vector<ReportRun>& runs) {
  Json all = Json::array();
  for (const ReportRun& run : runs) {
    all.push_back({{"name", run.history.name},
                   {"folder", run.history.folder.string()},
                   {"last_step", run.history.last_step},
                   {"damaged", damaged_list(run.history)},
                   {"findings", findings_list(run.findings)}});
  }
  return {{"runs", std::move(all)}};
}

}  // namespace mortise
