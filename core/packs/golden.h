// Golden tests of a pack: inputs, expected outputs and a tolerance, which the archive carries in tests/.
//
//   kind = "policy_loss"  plugin = "tilted"     # as `mortise plugin eval` takes them
//   inputs = "tilted.safetensors"               # next to the test: in.X and expected.X; of a reward: a .jsonl file
//   expected = "match.expected.jsonl"           # for a reward: {"reward": number|null} for each row of inputs
//   tolerance = 1e-6                            # times the largest element, and at least times 1; default 1e-6
//   [params]  clip = 0.2
// Each runs in a process of its own (`mortise plugin eval`), which is killed when its time is over. It runs the pack's
// code: call this only after the signature was verified and the user has seen what the pack may do.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "packs/pack_archive.h"

namespace mortise {

struct GoldenOptions {
  Path program;                               // the `mortise` that runs the tests
  std::chrono::milliseconds timeout{60'000};  // time limit of each
};

struct GoldenOutcome {
  std::string test;
  std::string fault;  // "": passed
};

// Runs every test of the archive on one of its builds. A test that fails is an outcome; an error is a test that cannot
// be run at all. Nothing without tests.
Result<std::vector<GoldenOutcome>> run_golden_tests(Env& env, const PackArchive& archive, const PackBuild& build,
                                                    const GoldenOptions& options);

// "" where the files hold the same values within the tolerance, else the first difference.
Result<std::string> compare_tensors(Env& env, const Path& inputs, const Path& outputs, double tolerance);
Result<std::string> compare_rewards(Env& env, const Path& expected, const Path& outputs, double tolerance);

}  // namespace mortise
