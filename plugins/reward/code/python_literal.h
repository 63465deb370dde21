// Python's literals in C++, so that an expected value need not enter the process of the tested program.
//
// Two values that are equal in Python (==) have the same canonical text: 1, 1.0 and True; a set in any order; a
// namedtuple and a tuple. Values that equal nothing (nan, objects of the program's own classes) have none. Threading:
// pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mortise {

// "assert EXPRESSION == LITERAL" (or the two swapped; perhaps with a message, in parentheses).
struct EqualityTest {
  std::string expression;
  std::string expected;  // canonical text of the literal
};

// Nothing if the statement has another form, or one that this does not know for certain.
std::optional<EqualityTest> read_equality_test(std::string_view statement);

std::optional<std::string> canonical_literal(std::string_view text);

// The canonical text of a value that the harness wrote as JSON (kHarnessExpression in code_harness.h).
std::optional<std::string> canonical_value(const std::string& encoded);

}  // namespace mortise
