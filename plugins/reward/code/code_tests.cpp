// Parses the test cases of a row, builds the program of a test, and compares outputs.
#include "code_tests.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include <mortise/cpp/plugin.hpp>

#include "parse/json.h"

#include "code_harness.h"

namespace mortise {
namespace {

using Json = nlohmann::json;
constexpr std::size_t kNone = std::string_view::npos;

// Text as it is; a list of lines joined.
std::string as_lines(const Json& v) {
  if (v.is_string()) return v.get<std::string>();
  if (!v.is_array()) return v.dump();
  std::string out;
  for (const Json& line : v) out += (line.is_string() ? line.get<std::string>() : line.dump()) + "\n";
  return out;
}

// The arguments of a call: a list, or a line of JSON for each.
Json arguments_of(const Json& input) {
  if (!input.is_string()) return input.is_array() ? input : Json::array({input});
  Json out = Json::array();
  const std::string text = input.get<std::string>();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    auto one = parse::parse_json(line);
    if (!one && one.fault().kind == parse::JsonFault::Kind::kLimit)
      fail(MORTISE_INVALID_ARGUMENT, "an input of the tests is " + one.fault().what);
    if (end > at) out.push_back(one ? *std::move(one) : Json(line));
    at = end + 1;
  }
  return out;
}

Json parsed_text(const Json& v) {
  if (!v.is_string()) return v;
  auto out = parse::parse_json(v.get_ref<const std::string&>());
  return out ? *std::move(out) : v;
}

bool same_value(const Json& a, const Json& b, double tolerance) {
  if (a.is_number() && b.is_number()) {
    const double x = a.get<double>(), y = b.get<double>();
    return a == b || std::abs(x - y) <= tolerance * std::max(std::abs(x), std::abs(y));
  }
  if (!a.is_array() || !b.is_array()) return a == b;
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [&](const Json& x, const Json& y) { return same_value(x, y, tolerance); });
}

std::vector<std::string_view> pieces(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> out;
  std::size_t at = 0;
  while (at <= text.size()) {
    const std::size_t end = std::min(text.find_first_of(separators, at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

std::string_view without_end_space(std::string_view s) {
  const std::size_t last = s.find_last_not_of(" \t\r\n");
  return last == kNone ? std::string_view() : s.substr(0, last + 1);
}

bool same_words(std::string_view got, std::string_view expected, double tolerance) {
  const auto words = [](std::string_view line) {
    std::vector<std::string_view> out = pieces(line, " \t");
    out.erase(std::remove(out.begin(), out.end(), std::string_view()), out.end());
    return out;
  };
  const auto is_same = [&](std::string_view a, std::string_view b) {
    if (a == b) return true;
    const std::string x(a), y(b);
    char *x_end = nullptr, *y_end = nullptr;
    const double p = std::strtod(x.c_str(), &x_end), q = std::strtod(y.c_str(), &y_end);
    if (*x_end != '\0' || *y_end != '\0' || !std::isfinite(p) || !std::isfinite(q)) return false;
    return std::abs(p - q) <= tolerance * std::max(std::abs(p), std::abs(q));
  };
  const auto a = words(got), b = words(expected);
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), is_same);
}

// A value from a program, which may be nested without end.
Json parsed_result(const std::string& text) {
  parse::JsonLimits limits;
  limits.max_depth = 200;
  auto out = parse::parse_json(text, limits);
  return out ? *std::move(out) : Json(Json::value_t::discarded);
}

}  // namespace

CodeTests read_tests(const Json& column, const std::string& name) {
  const auto refuse = [&](const std::string& why) {
    fail(MORTISE_INVALID_ARGUMENT,
         "column '" + name + "' " + why + "; expected {\"inputs\": [...], \"outputs\": [...]} or {\"tests\": [...]}");
  };
  const Json v = parsed_text(column);
  CodeTests out;
  if (v.is_object() && v.contains("tests") && v["tests"].is_array()) {
    out.kind = CodeTests::kAsserts;
    for (const Json& one : v["tests"]) {
      if (!one.is_string()) refuse("has a test that is not a text");
      const std::string statement = one.get<std::string>();
      out.cases.push_back({"", "", {}, statement, read_equality_test(statement)});
    }
  } else if (v.is_object() && v.contains("inputs") && v.contains("outputs")) {
    const Json &inputs = v["inputs"], &outputs = v["outputs"];
    if (!inputs.is_array() || !outputs.is_array() || inputs.size() != outputs.size())
      refuse("must have as many inputs as outputs, both as lists");
    const bool calls = v.contains("fn_name") && v["fn_name"].is_string();
    out.kind = calls ? CodeTests::kCalls : CodeTests::kPrints;
    if (calls) out.function = v["fn_name"].get<std::string>();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (calls) {
        out.cases.push_back({arguments_of(inputs[i]).dump(), "", parsed_text(outputs[i]), ""});
      } else {
        out.cases.push_back({as_lines(inputs[i]), as_lines(outputs[i]), {}, ""});
      }
    }
  } else {
    refuse("holds no tests");
  }
  if (out.cases.empty()) refuse("has an empty list of tests");
  return out;
}

std::string program_of(std::string_view completion) {
  for (const std::string_view open : {"```python", "```py", "```"}) {
    std::size_t at = completion.rfind(open);
    if (at == kNone) continue;
    // The last plain fence closes the block that the one before opens.
    if (open == "```") {
      const std::size_t before = at == 0 ? kNone : completion.rfind(open, at - 1);
      if (before != kNone) at = before;
    }
    std::string_view rest = completion.substr(at + open.size());
    const std::size_t line = rest.find('\n');
    if (line == kNone) return "";
    rest.remove_prefix(line + 1);
    return std::string(rest.substr(0, rest.find("```")));
  }
  return std::string(completion);
}

SandboxJob job_of(const CodeTests& tests, const CodeCase& one, const std::string& program, const std::string& nonce) {
  const auto job = [&](const char* harness, std::string test) {
    return SandboxJob{program, std::string(kHarnessStart) + harness, one.input, std::move(test)};
  };
  if (tests.kind == CodeTests::kPrints) return job(kHarnessPrints, "");
  if (tests.kind == CodeTests::kCalls) return job(kHarnessCalls, tests.function);
  if (one.equality) return job(kHarnessExpression, one.equality->expression);
  return job(kHarnessStatement, nonce + one.statement);
}

bool passes(const CodeTests& tests, const CodeCase& one, const SandboxRun& run, const std::string& nonce,
            double tolerance) {
  if (run.end != SandboxRun::kExited || run.code != 0) return false;
  if (tests.kind == CodeTests::kPrints) return same_output(run.output, one.expected, tolerance);
  if (tests.kind == CodeTests::kAsserts)
    return one.equality ? canonical_value(run.result) == one.equality->expected : run.result == nonce;
  const Json result = parsed_result(run.result);
  if (result.is_discarded()) return false;
  // Some data sets wrap the result in a list.
  return same_value(result, one.value, tolerance) ||
         (one.value.is_array() && one.value.size() == 1 && same_value(result, one.value[0], tolerance));
}

bool same_output(std::string_view got, std::string_view expected, double tolerance) {
  const auto a = pieces(without_end_space(got), "\n"), b = pieces(without_end_space(expected), "\n");
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::string_view x = without_end_space(a[i]), y = without_end_space(b[i]);
    if (x != y && !same_words(x, y, tolerance)) return false;
  }
  return true;
}

}  // namespace mortise
