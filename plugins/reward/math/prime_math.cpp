// The cleaning steps and comparisons of verl's prime_math and geo3k.
#include "prime_math.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <utility>

#include "../shared/verl_scores.h"
#include "judge.h"
#include "parse/text.h"

namespace mortise::verl {
namespace {

constexpr std::size_t kLongest = 1000;  // bytes of an answer that are compared as numbers
constexpr double kTolerance = 1e-4;

// Case does not count; `marker` is in lower case.
std::size_t last_of(std::string_view text, std::string_view marker) {
  const auto found = std::find_end(text.begin(), text.end(), marker.begin(), marker.end(), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? char(a - 'A' + 'a') : a) == b;
  });
  return found == text.end() ? std::string_view::npos : std::size_t(found - text.begin());
}

void keep_behind(std::string_view& text, std::initializer_list<const char*> markers) {
  for (const std::string_view marker : markers) {
    const std::size_t at = last_of(text, marker);
    if (at != std::string_view::npos) text = parse::trim(text.substr(at + marker.size()));
  }
}

void keep_before(std::string_view& text, std::initializer_list<const char*> markers) {
  for (const std::string_view marker : markers) {
    const std::size_t at = last_of(text, marker);
    if (at != std::string_view::npos) text = parse::trim(text.substr(0, at));
  }
}

// What the first pair of braces from `at` on holds; nothing where it is not closed.
std::optional<std::string_view> braced(std::string_view text, std::size_t at) {
  if (at == std::string_view::npos) return {};
  const std::size_t first = text.find('{', at);
  int open = 0;
  for (std::size_t i = first; i < text.size(); ++i) {
    if (text[i] == '{') ++open;
    if (text[i] == '}' && --open == 0) return parse::trim(text.substr(first + 1, i - first - 1));
  }
  return {};
}

// Both as MATH's own scorer cleans them, out of a \text{} around the whole.
std::string cleaned(std::string_view answer) {
  constexpr std::string_view kText = "\\text{";
  answer = parse::trim(answer);
  if (answer.size() > kText.size() + 1 && answer.substr(0, kText.size()) == kText && answer.back() == '}')
    answer = parse::trim(answer.substr(kText.size(), answer.size() - kText.size() - 1));
  const std::string text(answer);
  return math_cleaned(text).value_or(text);
}

bool equal_as_mathematics(std::string_view answer, const std::string& truth, double relative) {
  math::Rules rules;
  rules.relative = relative;
  return math::is_right({math::Answer(truth)}, math::Answer(answer), rules);
}

std::string without(std::string_view text, std::string_view gone) {
  std::string out(text);
  for (std::size_t at; (at = out.find(gone)) != std::string::npos;) out.erase(at, gone.size());
  return out;
}

// "$42", "1,234", "1{,}234", "25%" as a number.
std::optional<double> as_number(std::string_view text) {
  std::string digits = without(without(parse::trim(text), "{,}"), ",");
  if (!digits.empty() && digits.front() == '$') digits.erase(0, 1);
  if (!digits.empty() && digits.back() == '%') digits.pop_back();
  if (!digits.empty() && digits.back() == '\\') digits.pop_back();
  if (digits.empty() || digits.find_first_not_of("0123456789+-.eE") != std::string::npos) return {};
  char* end = nullptr;
  const double number = std::strtod(digits.c_str(), &end);
  if (end != digits.c_str() + digits.size() || !std::isfinite(number)) return {};
  return number;
}

bool is_close(double a, double b) { return std::abs(a - b) <= kTolerance * std::max(std::abs(a), std::abs(b)); }

std::string with_rough_pi(std::string_view text) {
  constexpr std::string_view kPi = "\\pi";
  std::string out(text);
  for (std::size_t at = 0; (at = out.find(kPi, at)) != std::string::npos;) out.replace(at, kPi.size(), "(3.14)");
  return out;
}

// --- PRM800K's forms ---

using math::Kind;
using math::Node;

// Without what it leaves out: %, degrees.
const Node& bare(const Node& n) { return n.kind == Kind::kPercent || n.kind == Kind::kDegrees ? bare(*n.args[0]) : n; }

std::optional<mpq_class> signed_number(const Node& n) {
  if (n.kind == Kind::kNumber) return n.number;
  if (n.kind != Kind::kNegate) return {};
  const auto inner = signed_number(*n.args[0]);
  return inner ? std::optional<mpq_class>(-*inner) : std::nullopt;
}

bool is_integer(const Node& n) {
  const auto number = signed_number(n);
  return number && number->get_den() == 1;
}

// a / b as written: {a, b}, a with the sign. A sign below the line makes it an expression, which is computed.
std::optional<std::pair<mpq_class, mpq_class>> fraction(const Node& n) {
  if (n.kind == Kind::kNegate) {
    auto inner = fraction(*n.args[0]);
    if (inner) inner->first = -inner->first;
    return inner;
  }
  if (n.kind != Kind::kDivide || !is_integer(*n.args[0]) || !is_integer(*n.args[1])) return {};
  const mpq_class below = *signed_number(*n.args[1]);
  if (below < 0) return {};
  return std::pair{*signed_number(*n.args[0]), below};
}

bool is_in_form(const Node& gold_node, const Node& answer_node) {
  const Node &gold = bare(gold_node), &answer = bare(answer_node);
  if (gold.kind == Kind::kTuple && answer.kind == Kind::kTuple) {
    if (gold.args.size() != answer.args.size()) return false;
    for (std::size_t i = 0; i < gold.args.size(); ++i)
      if (!is_in_form(*gold.args[i], *answer.args[i])) return false;
    return true;
  }
  const auto wanted = fraction(gold), given = fraction(answer);
  if (wanted && given) return *wanted == *given;
  return is_integer(gold) == is_integer(answer);
}

bool prm_is_right(std::string_view answer, const std::string& truth) {
  if (cleaned(answer) == cleaned(truth)) return true;
  const math::Answer gold(truth), given(answer);
  if (gold.node != nullptr && given.node != nullptr && !is_in_form(*gold.node, *given.node)) return false;
  return math::is_right({gold}, given, math::Rules{});
}

bool has_thought_and_box(std::string_view text) {
  constexpr std::string_view kThought = "<think>", kEnd = "</think>", kBox = "\\boxed{";
  if (text.substr(0, kThought.size()) != kThought) return false;
  const std::size_t end = text.find(kEnd, kThought.size());
  const std::size_t box = end == std::string_view::npos ? end : text.find(kBox, end + kEnd.size());
  return box != std::string_view::npos && text.find('}', box + kBox.size()) != std::string_view::npos;
}

}  // namespace

std::string prime_answer(std::string_view solution) {
  std::string_view text = solution;
  keep_behind(text, {"answer:", "answer is", "answers are"});
  keep_before(text, {"is answer", "is the answer", "are answers", "are the answers"});
  std::size_t box = text.rfind("\\boxed");
  if (box == std::string_view::npos) box = text.rfind("\\fbox");
  const auto boxed = braced(text, box);
  if (boxed && !boxed->empty()) text = *boxed;
  // The whole answer is a box that is cut off: verl's LaTeX parser shows its content.
  for (const std::string_view open : {"\\boxed{", "\\fbox{"}) {
    if (!boxed && text.substr(0, open.size()) == open) text = parse::trim(text.substr(open.size()));
  }
  const std::size_t sentence = text.rfind(". ");
  if (sentence != std::string_view::npos) text = parse::trim(text.substr(0, sentence));
  keep_behind(text, {"be ", "is ", "are ", "=", ": ", "get ", "be\n", "is\n", "are\n", ":\n", "get\n"});
  return std::string(text);
}

namespace {

// "1.5 million" as a number.
std::string with_powers_of_ten(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"million", "*10^6"}, {"billion", "*10^9"}, {"trillion", "*10^12"}};
  for (const auto& [name, power] : kNames) {
    for (std::size_t at = 0; (at = text.find(name, at)) != std::string::npos;) text.replace(at, name.size(), power);
  }
  return text;
}

bool prime_is_equal(const std::string& answer_text, const std::string& truth_text) {
  const std::string answer = with_powers_of_ten(answer_text), truth = with_powers_of_ten(truth_text);
  if (cleaned(answer) == cleaned(truth) || equal_as_mathematics(answer, truth, 0)) return true;
  const std::string_view head = std::string_view(answer).substr(0, kLongest);
  const auto given = as_number(head), wanted = as_number(truth);
  if (given && wanted)
    return is_close(*given, *wanted) || is_close(*given, *wanted / 100) || is_close(*given, *wanted * 100);
  if (equal_as_mathematics(head, truth, kTolerance)) return true;
  const bool has_pi = head.find("\\pi") != std::string_view::npos || truth.find("\\pi") != std::string::npos;
  return has_pi && equal_as_mathematics(with_rough_pi(head), with_rough_pi(truth), kTolerance);
}

}  // namespace

bool prime_is_right(std::string_view solution, const std::string& truth) {
  const std::string answer = prime_answer(solution);
  if (prime_is_equal(answer, truth)) return true;
  // "x = 5. Done. " keeps a sentence; verl's reader of LaTeX stops before its words.
  const std::size_t sentence = answer.find(". ");
  return sentence != std::string::npos && sentence > 0 && prime_is_equal(answer.substr(0, sentence), truth);
}

double geo3k_score(std::string_view solution, const std::string& truth) {
  // mathruler's own word for "no box".
  const std::string_view answer = braced(solution, solution.rfind("\\boxed{")).value_or("None");
  return 0.9 * (prm_is_right(answer, truth) ? 1.0 : 0.0) + 0.1 * (has_thought_and_box(solution) ? 1.0 : 0.0);
}

}  // namespace mortise::verl
