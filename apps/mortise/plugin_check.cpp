// Options of `mortise plugin check`, and the output of its report as text, JSON and JUnit XML.
#include "plugin_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <memory>

#include "archive_check.h"
#include "command_line.h"
#include "conformance/check.h"
#include "conformance/report.h"
#include "conformance/server.h"
#include "engine_parts.h"
#include "foundation/base/clock.h"
#include "foundation/base/text.h"
#include "foundation/formats/json_number.h"
#include "foundation/formats/jsonl.h"
#include "model/tensor/torch_version.h"
#include "plugin/pack/pack_file.h"
#include "plugin/pack/tier.h"

namespace mortise {
namespace {

namespace po = boost::program_options;

constexpr const char* kCheckUsage =
    R"(usage: mortise plugin check FILE [--only GLOB ...] [--params [PLUGIN:]k=v,k=v ...] [--json[=F]] [--junit[=F]]
       mortise plugin check --list

Tests a pack and every plugin in it against the numbered rules of the SDK (RULES.md). Each case runs in its own process
with a time limit, so a crash or a hang of the plugin is a failed case. A case that does not fit a plugin is "not
applicable" and never counts as passed.

FILE may be an archive (.mpack). The command then checks its build for this machine and runs its golden tests, unless
you give --only. If no trusted key signed the archive, give --trust any. A revoked key is refused even so.

GLOB matches cases ("numerics.*"), or cases of one plugin ("gspo:contract.*"). You must give parameters that have no
default. Without "PLUGIN:" every plugin that has the parameter gets it. Write a comma inside a value as "\,".
Exit codes: 0 no faults, 4 a case found one, 2 wrong options or parameters.
)";

Error check_usage_error(std::string what) {
  return {ErrorKind::kConfig, std::move(what), "mortise plugin check", "`mortise plugin check --help` shows the usage"};
}

// Lines as of a replay file: {"prompt_token_ids": [..], "completions": [..]}; the first three are used.
Result<> read_check_prompts(const std::string& path, check::CheckOptions& options) {
  constexpr size_t kMaxPrompts = 3;
  JsonlReader reader = TRY(JsonlReader::open(default_env(), path));
  while (options.prompts.size() < kMaxPrompts) {
    auto row = TRY(reader.next());
    if (!row) break;
    const std::string where = fmt::format("{}:{}", path, row->line);
    const Json* ids = json_find(row->value, "prompt_token_ids");
    if (ids == nullptr || !ids->is_array())
      return Error{ErrorKind::kData, "the row has no list 'prompt_token_ids'", where,
                   "write {\"prompt_token_ids\": [1, 2]}"};
    std::vector<int64_t>& prompt = options.prompts.emplace_back();
    for (const Json& id : *ids) {
      if (!is_i64(id)) return Error{ErrorKind::kData, "'prompt_token_ids' holds no token id", where, ""};
      prompt.push_back(id.get<int64_t>());
    }
    if (const Json* completions = json_find(row->value, "completions");
        completions != nullptr && completions->is_array())
      options.num_samples = static_cast<int64_t>(completions->size());
  }
  if (options.prompts.empty()) return Error{ErrorKind::kData, "there are no prompts", path, "give a row for each"};
  return {};
}

Result<check::CheckOptions> read_options(const po::variables_map& given) {
  check::CheckOptions options;
  options.host_torch = kTorchVersion;
  const auto words = [&](const char* name) {
    return given.count(name) == 0 ? std::vector<std::string>() : given[name].as<std::vector<std::string>>();
  };
  const auto files = words_of(given);
  if (files.size() != 1) return check_usage_error("it takes one pack file");
  options.pack = files[0];
  options.only = words("only");
  for (const std::string& text : words("params")) {
    for (check::GivenParam& one : TRY(check::parse_given_params(text))) options.params.push_back(std::move(one));
  }
  options.num_jobs = given["jobs"].as<int>();
  if (options.num_jobs < 0) return check_usage_error("--jobs must be a number of processes, or 0 for one per core");
  auto timeout = parse_duration_ns(given["timeout"].as<std::string>());
  if (!timeout.ok()) return check_usage_error("--timeout: " + timeout.error().what);
  options.timeout_ms = *timeout / 1'000'000;
  if (options.timeout_ms < 100) return check_usage_error("--timeout must be at least 100ms");
  if (given.count("prompts") != 0) TRY(read_check_prompts(given["prompts"].as<std::string>(), options));
  for (const std::string& glob : options.only) {
    bool any = false;
    for (const check::Case* one : check::all_cases()) {
      const size_t colon = glob.find(':');
      const std::string part = colon == std::string::npos ? glob : glob.substr(colon + 1);
      any = any || check::is_picked(std::vector<std::string>{part}, "", one->id);
    }
    if (!any)
      return check_usage_error(
          fmt::format("--only {} is not a case; `mortise plugin check --list` shows all", quote(glob)));
  }
  return options;
}

Result<> write_to(const std::string& target, const std::string& text) {
  if (target != "-") return write_file_atomic(default_env(), target, text);
  std::cout << text;
  return {};
}

Result<> check_file(const po::variables_map& given, int* code) {
  check::CheckOptions options = TRY(read_options(given));
  std::unique_ptr<UnpackedPack> unpacked;
  if (options.pack.ends_with(".mpack")) {
    unpacked = TRY(UnpackedPack::open(options.pack, given["trust"].as<std::string>()));
    options.pack = unpacked->library();
  }
  const auto info = inspect_pack(options.pack, kTorchVersion);  // a pack that cannot be read fails a case
  if (info.ok() && info->tier == kTorchLocked) TRY(need_libtorch());
  const check::CheckReport report = TRY(check::check_pack(options));
  if (report.outcomes.empty())
    return check_usage_error("no case was picked by --only for the plugins of " + quote(report.path));
  std::vector<GoldenOutcome> golden;  // they are no cases, which --only picks
  if (unpacked && options.only.empty()) golden = TRY(unpacked->run_tests());
  Json json = report_json(report);
  if (unpacked) json["golden"] = golden_json(golden);
  bool said = false;
  for (const char* format : {"json", "junit"}) {
    if (given.count(format) == 0) continue;
    const auto target = given[format].as<std::string>();
    TRY(write_to(target, std::string_view(format) == "json" ? dump_json(json, 2) + "\n" : report_junit(report)));
    said = said || target == "-";
  }
  if (!said) std::cout << report_text(report, given.count("verbose") != 0) << golden_text(golden);
  const bool golden_failed =
      std::any_of(golden.begin(), golden.end(), [](const GoldenOutcome& one) { return !one.fault.empty(); });
  if (report.num_faults() > 0 || golden_failed) *code = static_cast<int>(ErrorKind::kPlugin);
  return {};
}

}  // namespace

Result<> run_plugin_check(Arguments args, int* code) {
  // What this program starts for its cases (core/conformance/server.h).
  if (args.size() == 1 && args.front() == "--serve-cases") {
    *code = check::serve_cases();
    return {};
  }
  using Words = std::vector<std::string>;
  const auto to_stdout = [] { return po::value<std::string>()->implicit_value("-"); };
  po::options_description options("options", kHelpWidth);
  options.add_options()("only", po::value<Words>()->composing(), "run these cases alone; may be repeated")(
      "params", po::value<Words>()->composing(), "parameters of a plugin, or of all that have them; may be repeated")(
      "prompts", po::value<std::string>(), "JSONL file with prompt_token_ids, for rollout backends with their own")(
      "timeout", po::value<std::string>()->default_value("10s"), "time limit of each case")(
      "trust", po::value<std::string>()->default_value("signed"),
      "which archives (.mpack) to check: signed (by a trusted key) or any")("jobs", po::value<int>()->default_value(0),
                                                                            "cases at a time; 0: one per core")(
      "json", to_stdout(), "the result as JSON, to a file or to standard output")("junit", to_stdout(), "as JUnit XML")(
      "verbose,v", "a line for every case")("list", "the cases and their rules")("help,h", "this text");
  const po::variables_map given = TRY(parse_words(args, options, "mortise plugin check"));
  if (given.count("help") != 0) {
    std::cout << kCheckUsage << "\n" << options;
    return {};
  }
  if (given.count("list") == 0) return check_file(given, code);
  std::cout << (given.count("json") != 0 ? dump_json(check::list_json(), 2) + "\n" : check::list_text());
  return {};
}

}  // namespace mortise
