// Diagnosis: what looks wrong in a run, in words, with the numbers that show it and what to do. Each rule compares the
// beginning of the run with its end (windows of a fifth of the steps, at least one), and is silent where a run is too
// short or lacks the metric.
//
// docs/diagnosis.md explains the rules. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/history.h"

namespace mortise {

struct Finding {
  std::string rule;      // "entropy_collapse", stable: docs/diagnosis.md has a part of this name
  std::string title;     // "The policy's entropy has collapsed"
  std::string evidence;  // the numbers
  std::string advice;    // begins with a verb
};

// A completion of a step, as far as rules look at it.
struct ScoredText {
  int64_t prompt_index = 0;
  std::string text;
};

// `last_completions`: of the newest step that has a file; may be empty.
std::vector<Finding> diagnose(const RunHistory& run, const std::vector<ScoredText>& last_completions);

// Where the rule is explained: "docs/diagnosis.md#entropy_collapse".
std::string docs_of(const Finding& finding);

// The names of all rules, for the docs' test.
std::vector<std::string> diagnosis_rules();

}  // namespace mortise
