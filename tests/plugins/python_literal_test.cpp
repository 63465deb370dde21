// Python literals in C++: values that are equal in Python have one canonical text, and values that are not known for
// certain have none.
#include "python_literal.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace mortise::test {
namespace {

TEST(PythonLiteral, EqualValuesHaveOneText) {
  const std::vector<std::pair<std::string, std::string>> equal = {{"1", "1.0"},
                                                                  {"1", "True"},
                                                                  {"0", "-0.0"},
                                                                  {"False", "0"},
                                                                  {"-7", "- 7.0"},
                                                                  {"1e3", "1000"},
                                                                  {"(3)", "3"},
                                                                  {"[1,2]", "[ 1.0,\n 2, ]"},
                                                                  {"'a'", "\"a\""},
                                                                  {"'a' 'b'", "'ab'"},
                                                                  {"'\\u00e9'", "'é'"},
                                                                  {"'\\x41'", "'A'"},
                                                                  {"{1, 2, 2}", "{2, 1}"},
                                                                  {"set([1, 2])", "{2, 1}"},
                                                                  {"set()", "frozenset()"},
                                                                  {"tuple([1])", "(1,)"},
                                                                  {"{'a': 1, 'b': [2]}", "{'b': [2.0], 'a': True}"},
                                                                  {"list((1, 2))", "[1, 2]"},
                                                                  {"'''a\nb'''", "'a\\nb'"},
                                                                  {"b'\\xff'", "b\"\\xff\""},
                                                                  {"100000000000000000000", "1e20"}};
  for (const auto& [a, b] : equal) {
    ASSERT_TRUE(canonical_literal(a)) << a;
    EXPECT_EQ(canonical_literal(a), canonical_literal(b)) << a << " and " << b;
  }
}

TEST(PythonLiteral, OthersDiffer) {
  const std::vector<std::string> different = {
      "1",   "2",          "-1",      "1.5",     "'1'",      "b'1'",       "[1]",       "(1,)",
      "{1}", "{1: 1}",     "None",    "[]",      "()",       "{}",         "set()",     "''",
      "b''", "['a', 'b']", "['a,b']", "[[1]]",   "[1, 1]",   "'s1:'",      "1e400",     "-1e400",
      "0.1", "'n1'",       "'None'",  "'[n1,]'", "{'a': 1}", "{('a', 1)}", "[('a', 1)]"};
  for (std::size_t i = 0; i < different.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_NE(canonical_literal(different[i]), canonical_literal(different[j]))
          << different[i] << " " << different[j];
}

TEST(PythonLiteral, WhatIsNoPlainLiteralIsLeftAlone) {
  for (const char* text : {"",
                           "x",
                           "f(1)",
                           "[x]",
                           "1 + 1",
                           "[1",
                           "1]",
                           "'a",
                           "f'a'",
                           "'a' f'b'",
                           "1j",
                           "0x1F",
                           "1_000",
                           "007",
                           "-'a'",
                           "[1 2]",
                           "{1: 2, 1: 3}",
                           "{1: 2, 3}",
                           "dict()",
                           "set('ab')",
                           "tuple({1, 2})",
                           "'\\N{DIGIT ONE}'",
                           "'\\101'",
                           "r'a\\b'",
                           "float('nan')",
                           "1 if x else 2",
                           "[*a]",
                           "lambda: 1",
                           "b'é'",
                           "'a' b'a'",
                           "None1",
                           "--",
                           "1.2.3"})
    EXPECT_FALSE(canonical_literal(text)) << text;
  EXPECT_FALSE(canonical_literal(std::string(100'000, '['))) << "nested without end";
}

TEST(PythonLiteral, ValuesOfTheHarness) {
  const std::vector<std::pair<std::string, std::string>> same = {
      {R"({"i": "7"})", "7"},
      {R"({"f": "7.0"})", "7"},
      {R"({"f": "0.1"})", "0.1"},
      {R"({"f": "inf"})", "1e999"},
      {R"({"s": "c3a9"})", "'é'"},
      {R"({"b": "ff00"})", "b'\\xff\\x00'"},
      {R"({"l": [null, {"t": []}]})", "[None, ()]"},
      {R"({"e": [{"i": "2"}, {"i": "1"}]})", "{1, 2}"},
      {R"({"d": [[{"s": "61"}, {"i": "-1"}]]})", "{'a': -1}"}};
  for (const auto& [value, literal] : same) EXPECT_EQ(canonical_value(value), canonical_literal(literal)) << literal;
  for (const char* value : {"", "{", "1", "[]", "{}", R"({"o": []})", R"({"f": "nan"})", R"({"l": [{"o": []}]})",
                            R"({"x": "1"})", R"({"d": [1]})", R"({"i": "1"}{"i": "2"})"})
    EXPECT_FALSE(canonical_value(value)) << value;
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += R"({"l":[)";
  EXPECT_FALSE(canonical_value(deep));
}

TEST(PythonLiteral, StatementsThatCompareWithALiteral) {
  const auto expression = [](const std::string& s) {
    const auto test = read_equality_test(s);
    return test ? test->expression + " | " + test->expected : "none";
  };
  EXPECT_EQ(expression("assert f(1) == 2"), "f(1) | n2");
  EXPECT_EQ(expression("  assert f(1)==2 # why\n"), "f(1) | n2");
  EXPECT_EQ(expression("assert f(1) == 2, 'not ' + \"this == that\""), "f(1) | n2");
  EXPECT_EQ(expression("assert(f(1) == 2)"), "f(1) | n2");
  EXPECT_EQ(expression("assert ((f(1)) == (2))"), "(f(1)) | n2");
  EXPECT_EQ(expression("assert 2 == f(1)"), "f(1) | n2");
  EXPECT_EQ(expression("assert f(\"a == b # c\", [1,\n 2]) == [1,\n 2]"), "f(\"a == b # c\", [1,\n 2]) | [n1,n2,]");
  EXPECT_EQ(expression("assert set(f(x=1)[1:]) == {1: 'a'}"), "set(f(x=1)[1:]) | {n1=s1:a,}");
  for (const char* other : {"assert f(1)",
                            "assert not f(1) == 2",
                            "assert f(1) == g(2)",
                            "assert f(1) == 2 and f(2) == 3",
                            "assert f(1) != 2",
                            "assert f(1) == 2; f(3)",
                            "assert f(1) == 2\nassert f(2) == 3",
                            "x = f(1)\nassert x == 2",
                            "assert f(1) == 2 == 2",
                            "assert (f(1) == 2, 'always true')",
                            "assert abs(f(1) - 2) < 1e-6",
                            "assert f(1) is None",
                            "assert f(1) in (1, 2)",
                            "assert all(f(i) == i for i in x) == True",
                            "assert (f(1) == 2) == True",
                            "assert f(lambda x: x) == 2",
                            "assert (f(1) == 2), 'a'",
                            "assert (x := f(1)) == 2",
                            "assert f(1) == 2 if x else y",
                            "asserting == 2",
                            "assert f('a) == 2",
                            "assert f(1) \\\n == 2",
                            "assert (f(1) # why == 2\n) == 2"})
    EXPECT_EQ(expression(other), "none") << other;
}

}  // namespace
}  // namespace mortise::test
