// `mortise plugin check`: every fitting case on every plugin of a pack, each in its own process.
//
// This process reads the pack's note and runs none of its code; server.h does. Cost: a start of the program per job,
// then milliseconds per case. Threading: call from one thread; it starts one per job.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "conformance/case.h"
#include "foundation/base/result.h"

namespace mortise::check {

// Parameters for a plugin, or for every plugin that declares them (plugin ""): key and text.
struct GivenParam {
  std::string plugin, key, text;
};
// "[PLUGIN:]key=value[,key=value...]"; a comma inside a value is written "\,".
[[nodiscard]] Result<std::vector<GivenParam>> parse_given_params(std::string_view text);

struct CheckOptions {
  std::string pack;               // path
  std::vector<std::string> only;  // globs on "group.case", or "plugin:group.case"; empty: all
  std::vector<GivenParam> params;
  std::vector<std::vector<int64_t>> prompts;  // for rollout backends
  int64_t num_samples = 2;
  int num_jobs = 0;             // 0: a job per core
  int64_t timeout_ms = 10'000;  // time limit of a case
  std::string host_torch;       // version of libtorch in this program, for packs locked to it; empty: none
  // The program that serves cases (serve_cases), with its arguments; empty: this one, `plugin check --serve-cases`.
  std::vector<std::string> server;
};

struct Outcome {
  const Case* one = nullptr;
  std::string plugin;  // empty for cases about the pack
  std::string kind;    // full id
  std::string status;  // passed, failed, crashed, timed_out, exited, not_applicable, skipped
  std::string text;    // what the fault is; for "passed", how far the case looked, or nothing
  std::string output;  // what the case's process printed
  double seconds = 0;
  [[nodiscard]] bool is_fault() const {
    return status != "passed" && status != "not_applicable" && status != "skipped";
  }
};

struct CheckReport {
  std::string path, id, version, sha256;  // id is empty where the note cannot be read
  std::vector<Outcome> outcomes;          // the pack's outcome, then one per plugin
  double seconds = 0;
  [[nodiscard]] size_t count(std::string_view status, std::string_view plugin) const;
  [[nodiscard]] size_t num_faults() const;
};

// An Error only where the check could not be made: no such file, parameters that do not fit, no process.
[[nodiscard]] Result<CheckReport> check_pack(const CheckOptions& options);

// Does a glob of `only` pick this case of this plugin?
[[nodiscard]] bool is_picked(std::span<const std::string> only, std::string_view plugin, std::string_view case_id);

}  // namespace mortise::check
