// The tests of a row of the reward `code`: reads them, says how to run each one, and checks its result.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "python_literal.h"
#include "sandbox.h"

namespace mortise {

struct CodeCase {
  std::string input;                       // standard input, or the arguments as JSON
  std::string expected;                    // standard output
  nlohmann::json value;                    // the call's value
  std::string statement;                   // an assert
  std::optional<EqualityTest> equality{};  // the same, if it is one
};

struct CodeTests {
  enum Kind { kPrints, kCalls, kAsserts };
  Kind kind = kPrints;
  std::string function;
  std::vector<CodeCase> cases;  // at least one
};

// Throws Failure that names the column and the fault.
CodeTests read_tests(const nlohmann::json& column, const std::string& name);

// The Python of a completion.
std::string program_of(std::string_view completion);

// What runs one test. Expected values stay outside the sandbox, except those in a statement of no simple form. The
// harness writes `nonce`, 32 characters, after such a statement has run.
SandboxJob job_of(const CodeTests& tests, const CodeCase& one, const std::string& program, const std::string& nonce);

bool passes(const CodeTests& tests, const CodeCase& one, const SandboxRun& run, const std::string& nonce,
            double tolerance);

// Same lines, white space at their ends and empty lines at the end left out; where words differ, both must be numbers
// within the tolerance.
bool same_output(std::string_view got, std::string_view expected, double tolerance);

}  // namespace mortise
