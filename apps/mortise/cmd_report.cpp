// `mortise report`: one HTML page about one or more runs, and on the console what looks wrong in them.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "command_line.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "report/page.h"

namespace mortise {
namespace {

namespace po = boost::program_options;
constexpr const char* kReportCommand = "mortise report";
constexpr const char* kReportUsage =
    "usage: mortise report RUN [RUN ...] [-o report.html] [options]\n\n"
    "Reads the folders of runs (trainer.default_local_dir) and writes one HTML file that opens without a network: curves,\n"
    "what looks wrong, completions, settings side by side, plugins and events. Runs may still be training.\n";

struct ReportArguments {
  std::vector<std::string> runs;
  std::string output = "report.html";
  int64_t completions = 5000;
  bool json = false;
};

po::options_description report_options(ReportArguments& args) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("output,o", po::value(&args.output)->default_value(args.output), "the file to write")(
      "completions", po::value(&args.completions)->default_value(args.completions),
      "the most completions of a run in the page; whole steps, spread evenly")(
      "json", po::bool_switch(&args.json), "write no page; print the findings as one JSON object");
  return options;
}

Result<ReportArguments> parse_report(Arguments args) {
  ReportArguments out;
  out.runs = words_of(TRY(parse_words(args, report_options(out), kReportCommand)));
  if (out.runs.empty())
    return Error{ErrorKind::kConfig, "a run is missing", kReportCommand,
                 "name the folder of a run, such as runs/quickstart"};
  if (out.completions < 0)
    return Error{ErrorKind::kConfig, fmt::format("--completions is {}", out.completions), kReportCommand,
                 "give 0 or more"};
  return out;
}

// The page must not replace a file of a run, in its folder or elsewhere. It may replace an older page.
Result<> check_output(const ReportArguments& args, const ReportRun& run) {
  for (const auto& [step, file] : run.history.completion_files)
    TRY(check_distinct({"a file of the run", file.string()}, {"--output", args.output}, kReportCommand));
  std::error_code no_output, no_folder;
  const Path output = std::filesystem::weakly_canonical(args.output, no_output);
  const Path folder = std::filesystem::weakly_canonical(run.history.folder, no_folder);
  if (no_output || no_folder) return {};  // writing says what is wrong
  const bool is_inside = std::ranges::mismatch(folder, output).in1 == folder.end();
  if (!is_inside || output.extension() == ".html" || !default_env().exists(output)) return {};
  return Error{ErrorKind::kConfig, fmt::format("--output is a file of the run, {}", quote(args.output)), kReportCommand,
               "name another output"};
}

void print_findings(const ReportRun& run) {
  std::cout << fmt::format(
      "{}: {}, {}\n", run.history.folder.string(), counted(run.history.last_step, "step"),
      run.findings.empty() ? "no rule found a fault" : counted(static_cast<int64_t>(run.findings.size()), "finding"));
  for (const DamagedLines& damaged : run.history.damaged) std::cout << "  " << describe(damaged) << "\n";
  for (const Finding& finding : run.findings)
    std::cout << fmt::format("  {} ({})\n    {}\n    {}\n", finding.title, docs_of(finding), one_line(finding.evidence),
                             finding.advice);
}

Result<> run_report(const ReportArguments& args) {
  Env& env = default_env();
  std::vector<ReportRun> runs;
  for (const std::string& folder : args.runs) runs.push_back(TRY(read_report_run(env, folder, args.completions)));
  if (args.json) {
    std::cout << dump_json(findings_json(runs)) << "\n";
    return {};
  }
  for (const ReportRun& run : runs) TRY(check_output(args, run));
  const std::string page = report_page(runs);
  TRY(write_file_atomic(env, args.output, page));
  for (const ReportRun& run : runs) print_findings(run);
  std::cout << fmt::format("{} is written ({}); open it in a browser\n", args.output, format_bytes(page.size()));
  return {};
}

}  // namespace

int cmd_report(Arguments args) {
  return run_parsed<ReportArguments>(args, kReportUsage, report_options, parse_report, run_report);
}

}  // namespace mortise
