// The result of a check as text, as JSON and as JUnit XML.
#pragma once

#include <string>

#include "conformance/check.h"
#include "foundation/formats/json.h"

namespace mortise::check {

// Failures in full, the rest as counts; `verbose`: a line per case about the kind.
[[nodiscard]] std::string report_text(const CheckReport& report, bool verbose);
[[nodiscard]] Json report_json(const CheckReport& report);
// A suite per plugin, a test case per case; crashes and hangs are errors, what does not apply is skipped.
[[nodiscard]] std::string report_junit(const CheckReport& report);

// The cases themselves: id, rule, kinds, what holds.
[[nodiscard]] Json list_json();
[[nodiscard]] std::string list_text();

}  // namespace mortise::check
