// The tests of a row of the reward `code`: reading them, the program that runs one, and whether what it printed is
// right.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace mortise {

struct CodeCase {
  std::string input;      // standard input, or the arguments as JSON
  std::string expected;   // standard output
  nlohmann::json value;   // of a call
  std::string statement;  // an assert
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

// The program with what calls it and tells by `mark` that the end was reached.
std::string with_driver(const CodeTests& tests, const CodeCase& one, const std::string& program,
                        const std::string& mark);

bool passes(const CodeTests& tests, const CodeCase& one, const std::string& output, const std::string& mark,
            double tolerance);

// Same lines, white space at their ends and empty lines at the end left out; where words differ, both must be numbers
// within the tolerance.
bool same_output(std::string_view got, std::string_view expected, double tolerance);

}  // namespace mortise
