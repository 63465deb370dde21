#include "compare.h"

#include <algorithm>
#include <cmath>

#include "evaluate.h"
#include "normalise.h"
#include "parser.h"

namespace mortise::math {
namespace {

constexpr std::size_t kMaxItems = 200;  // of a set or a list

bool contains(const Node& n, Kind kind) {
  return n.kind == kind ||
         std::any_of(n.args.begin(), n.args.end(), [&](const NodePtr& a) { return contains(*a, kind); });
}

// A number as written: a decimal, with a sign, with %.
bool is_decimal(const Node& n) {
  if (n.kind == Kind::kNegate || n.kind == Kind::kPercent || n.kind == Kind::kDegrees) return is_decimal(*n.args[0]);
  return n.kind == Kind::kNumber && n.decimal;
}

bool is_percent(const Node& n) {
  return n.kind == Kind::kPercent || (n.kind == Kind::kNegate && is_percent(*n.args[0]));
}

// "3:30" is a time and no ratio.
bool is_time(const Node& n) {
  const Node& minutes = *n.args.back();
  return minutes.kind == Kind::kNumber && minutes.number >= 10 && minutes.number < 60;
}

// 1 or -1 for an infinity.
int infinity_sign(const Node& n) {
  if (n.kind == Kind::kInfinity) return 1;
  return n.kind == Kind::kNegate ? -infinity_sign(*n.args[0]) : 0;
}

// "f(x)", "x", "P(x, y)": what a value is given to.
bool is_name(const Node& n) {
  if (n.kind == Kind::kSymbol || n.kind == Kind::kEuler || n.kind == Kind::kImaginary) return true;
  return n.kind == Kind::kMultiply && n.args.size() == 2 && n.args[0]->kind == Kind::kSymbol &&
         (n.args[1]->kind == Kind::kSymbol || n.args[1]->kind == Kind::kTuple);
}

// What the relation gives its name: the last side of "x = 84/2 = 42", of "40 + 2 = 42", of "x \in [0, 5)".
NodePtr given_value(const Node& n) {
  const bool gives = n.text.find_first_not_of("=~") == std::string::npos || n.text == "i";
  if (!gives) return nullptr;
  const auto is_constant = [](const NodePtr& side) { return is_scalar(*side) && !contains(*side, Kind::kSymbol); };
  if (is_name(*n.args.front()) || std::all_of(n.args.begin(), n.args.end(), is_constant)) return n.args.back();
  if (n.args.size() == 2 && n.text == "=" && is_name(*n.args.back())) return n.args.front();  // 42 = x
  return nullptr;
}

// "x > 3", "0 <= x < 5" as an interval.
NodePtr as_interval(const Node& n) {
  if (n.text.find_first_not_of("<>lg") != std::string::npos || n.text.size() > 2) return nullptr;
  std::vector<NodePtr> sides = n.args;
  std::string operators = n.text;
  const auto is_up = [](char c) { return c == '<' || c == 'l'; };
  if (!is_up(operators[0])) {
    std::reverse(sides.begin(), sides.end());
    std::reverse(operators.begin(), operators.end());
    for (char& c : operators) c = c == '>' ? '<' : c == 'g' ? 'l' : c == '<' ? '>' : 'g';
  }
  if (!std::all_of(operators.begin(), operators.end(), is_up)) return nullptr;
  const auto closed = [](char c) { return c == 'l'; };
  const NodePtr infinity = make(Kind::kInfinity);
  if (sides.size() == 3) {
    if (sides[1]->kind != Kind::kSymbol) return nullptr;
    const std::string brackets{closed(operators[0]) ? '[' : '(', closed(operators[1]) ? ']' : ')'};
    return make(Kind::kTuple, {sides[0], sides[2]}, brackets);
  }
  if (sides[0]->kind == Kind::kSymbol) {
    const std::string brackets{'(', closed(operators[0]) ? ']' : ')'};
    return make(Kind::kTuple, {make(Kind::kNegate, {infinity}), sides[1]}, brackets);
  }
  if (sides[1]->kind != Kind::kSymbol) return nullptr;
  const std::string brackets{closed(operators[0]) ? '[' : '(', ')'};
  return make(Kind::kTuple, {sides[0], infinity}, brackets);
}

class Comparison {
 public:
  Comparison(const Rules& rules, Budget& budget) : rules_(rules), budget_(budget), arithmetic_(budget) {}

  bool same(const Node& gold, const Node& answer) {
    budget_.spend(50);
    if (is_scalar(gold) && is_scalar(answer)) return same_scalars(gold, answer);
    if (gold.kind == Kind::kRelation || answer.kind == Kind::kRelation) return same_relations(gold, answer);
    if (gold.kind == Kind::kList || gold.kind == Kind::kSet || answer.kind == Kind::kList || answer.kind == Kind::kSet)
      return same_collections(gold, answer);
    if (gold.kind == Kind::kRatio || answer.kind == Kind::kRatio) return same_ratios(gold, answer);
    if (gold.kind != answer.kind) return false;
    switch (gold.kind) {
      case Kind::kWord:
      case Kind::kBased:
        return gold.text == answer.text;
      case Kind::kTuple:
        return same_tuples(gold, answer);
      case Kind::kMatrix:
        return gold.columns == answer.columns && same_in_order(gold.args, answer.args);
      case Kind::kDifference:
        return same_in_order(gold.args, answer.args);
      case Kind::kUnion:
      case Kind::kIntersection:
        return same_in_any_order(gold.args, answer.args);
      default:
        return false;
    }
  }

 private:
  // --- one number, maybe with symbols
  bool same_scalars(const Node& gold, const Node& answer) {
    const bool both_signs = contains(gold, Kind::kPlusMinus) || contains(answer, Kind::kPlusMinus);
    if (both_signs) return same_pairs(gold, answer);
    const int gold_infinity = infinity_sign(gold), answer_infinity = infinity_sign(answer);
    if (gold_infinity != 0 || answer_infinity != 0) return gold_infinity == answer_infinity;
    if (!contains(gold, Kind::kSymbol) && !contains(answer, Kind::kSymbol))
      return same_constants(gold, answer, true, true);
    return same_functions(gold, answer);
  }

  bool same_constants(const Node& gold, const Node& answer, bool gold_upper, bool answer_upper) {
    const Value x = evaluate(gold, 0, gold_upper, arithmetic_), y = evaluate(answer, 0, answer_upper, arithmetic_);
    const bool decimals[] = {is_decimal(gold), is_decimal(answer)};
    if (same_values(x, y, decimals)) return true;
    // "25%" for "25".
    if (is_percent(gold) == is_percent(answer)) return false;
    const Value hundred = integer(100);
    return is_percent(gold) ? same_values(arithmetic_.multiply(x, hundred), y, decimals)
                            : same_values(x, arithmetic_.multiply(y, hundred), decimals);
  }

  bool is_close(const Value& x, const Value& y) {
    if (!is_real(x) || !is_real(y)) return false;
    const Value a = arithmetic_.absolute(x), b = arithmetic_.absolute(y);
    const Value bound = arithmetic_.multiply(Exact{mpq_class(rules_.relative), 0}, arithmetic_.less(a, b) ? b : a);
    return !arithmetic_.less(bound, arithmetic_.absolute(arithmetic_.subtract(x, y)));
  }

  bool same_values(const Value& x, const Value& y, const bool (&decimals)[2]) {
    return same_as_written(x, y, decimals) || (rules_.relative > 0 && is_close(x, y));
  }

  bool same_as_written(const Value& x, const Value& y, const bool (&decimals)[2]) {
    long whole = 0;
    const bool exact =
        (!decimals[0] && !decimals[1]) || (!decimals[0] && as_long(x, whole)) || (!decimals[1] && as_long(y, whole));
    if (exact) return arithmetic_.equal(x, y);
    // log10 of the number, upwards: two digits of a small one count.
    const double size = magnitude(x) * 0.30103;
    const double places = std::max(double(rules_.places), std::isfinite(size) ? std::ceil(-size) + 1 : 0.0);
    return arithmetic_.equal_rounded(x, y, long(std::min(places, 2000.0)));
  }

  // Equal wherever both are defined, and defined somewhere.
  bool same_functions(const Node& gold, const Node& answer) {
    int num_equal = 0;
    for (int point = 0; point < kNumPoints; ++point) {
      try {
        const Value x = evaluate(gold, point, true, arithmetic_), y = evaluate(answer, point, true, arithmetic_);
        if (!arithmetic_.equal(x, y)) return false;
        ++num_equal;
      } catch (const Undefined&) {  // not at this point
      }
    }
    return num_equal > 0;
  }

  // a +- b against itself or against a list of two.
  bool same_pairs(const Node& gold, const Node& answer) {
    if (!contains(gold, Kind::kPlusMinus) || !contains(answer, Kind::kPlusMinus)) return false;
    if (contains(gold, Kind::kSymbol) || contains(answer, Kind::kSymbol)) return same_at_points(gold, answer);
    for (const bool turned : {false, true}) {
      if (same_constants(gold, answer, true, !turned) && same_constants(gold, answer, false, turned)) return true;
    }
    return false;
  }
  bool same_at_points(const Node& gold, const Node& answer) {
    for (int point = 0; point < kNumPoints; ++point) {
      const auto at = [&](const Node& n, bool upper) { return evaluate(n, point, upper, arithmetic_); };
      const bool straight =
          arithmetic_.equal(at(gold, true), at(answer, true)) && arithmetic_.equal(at(gold, false), at(answer, false));
      const bool turned =
          arithmetic_.equal(at(gold, true), at(answer, false)) && arithmetic_.equal(at(gold, false), at(answer, true));
      if (!straight && !turned) return false;
    }
    return true;
  }

  // --- several
  bool same_in_order(const std::vector<NodePtr>& gold, const std::vector<NodePtr>& answer) {
    if (gold.size() != answer.size()) return false;
    for (std::size_t i = 0; i < gold.size(); ++i)
      if (!same(*gold[i], *answer[i])) return false;
    return true;
  }

  bool same_in_any_order(const std::vector<NodePtr>& gold, const std::vector<NodePtr>& answer) {
    if (gold.size() > kMaxItems || answer.size() > kMaxItems) return false;
    const std::vector<NodePtr> wanted = distinct(gold), given = distinct(answer);
    if (wanted.size() != given.size()) return false;
    std::vector<char> taken(given.size());
    for (const NodePtr& item : wanted) {
      std::size_t k = 0;
      while (k < given.size() && (taken[k] != 0 || !quietly_same(*item, *given[k]))) ++k;
      if (k == given.size()) return false;
      taken[k] = 1;
    }
    return true;
  }
  std::vector<NodePtr> distinct(const std::vector<NodePtr>& items) {
    std::vector<NodePtr> out;
    for (const NodePtr& item : items) {
      const auto is_same = [&](const NodePtr& other) { return quietly_same(*item, *other); };
      if (std::none_of(out.begin(), out.end(), is_same)) out.push_back(item);
    }
    return out;
  }
  // An item without a value equals none, but the work that it cost counts.
  bool quietly_same(const Node& a, const Node& b) {
    try {
      return same(a, b);
    } catch (const Undefined&) {
      budget_.spend(0);
      return false;
    }
  }

  // The members of a list or a set; those of +-x, and a lone answer, are lists too.
  std::vector<NodePtr> members(const Node& n) const {
    if (n.kind == Kind::kList || n.kind == Kind::kSet) {
      std::vector<NodePtr> out;
      for (const NodePtr& arg : n.args) {
        const NodePtr value = arg->kind == Kind::kRelation ? given_value(*arg) : nullptr;
        const bool is_pair = value != nullptr && contains(*value, Kind::kPlusMinus);
        for (NodePtr& member : members_of(is_pair ? value : arg)) out.push_back(std::move(member));
      }
      return out;
    }
    return members_of(std::make_shared<Node>(n));
  }
  static std::vector<NodePtr> members_of(const NodePtr& n) {
    if (!is_scalar(*n) || !contains(*n, Kind::kPlusMinus)) return {n};
    return {resolved(n, true), resolved(n, false)};
  }
  // The tree with every +- decided.
  static NodePtr resolved(const NodePtr& n, bool upper) {
    std::vector<NodePtr> args;
    for (const NodePtr& arg : n->args) args.push_back(resolved(arg, upper));
    if (n->kind == Kind::kPlusMinus) return (n->text == "+") == upper ? args[0] : make(Kind::kNegate, std::move(args));
    auto copy = std::make_shared<Node>(*n);
    copy->args = std::move(args);
    return copy;
  }

  // "x = 1, y = 2" as 1, 2.
  static std::vector<NodePtr> given_values(const std::vector<NodePtr>& items) {
    std::vector<NodePtr> out;
    for (const NodePtr& item : items) {
      NodePtr value = item->kind == Kind::kRelation ? given_value(*item) : nullptr;
      out.push_back(value != nullptr ? std::move(value) : item);
    }
    return out;
  }

  bool same_collections(const Node& gold, const Node& answer) {
    // A bare "1, 2" may be meant as the tuple (1, 2), and the other way round.
    const auto is_row = [](const Node& n) { return n.kind == Kind::kTuple && n.text == "()"; };
    if (is_row(gold) || is_row(answer)) {
      const bool gold_is = is_row(gold);
      const Node& other = gold_is ? answer : gold;
      if (other.kind != Kind::kList) return false;
      const std::vector<NodePtr> given = given_values(other.args);
      return gold_is ? same_in_order(gold.args, given) : same_in_order(given, answer.args);
    }
    return same_in_any_order(members(gold), members(answer));
  }

  // Of two, the brackets tell intervals apart.
  bool same_tuples(const Node& gold, const Node& answer) {
    if (gold.args.size() == 2 && gold.text != answer.text) return false;
    return same_in_order(gold.args, answer.args);
  }

  // "2:3" is "4:6" and 2/3; longer ones and times are the same part by part.
  bool same_ratios(const Node& gold, const Node& answer) {
    if (gold.kind == answer.kind && same_in_order(gold.args, answer.args)) return true;
    const auto as_fraction = [](const Node& n) -> NodePtr {
      if (n.kind != Kind::kRatio) return std::make_shared<Node>(n);
      return n.args.size() == 2 && !is_time(n) ? make(Kind::kDivide, n.args) : nullptr;
    };
    const NodePtr x = as_fraction(gold), y = as_fraction(answer);
    return x != nullptr && y != nullptr && is_scalar(*x) && is_scalar(*y) && same_scalars(*x, *y);
  }

  // --- equations and inequalities
  bool same_relations(const Node& gold, const Node& answer) {
    if (gold.kind == Kind::kRelation && answer.kind == Kind::kRelation) return same_both_relations(gold, answer);
    const bool gold_is = gold.kind == Kind::kRelation;
    const Node& relation = gold_is ? gold : answer;
    const Node& other = gold_is ? answer : gold;
    NodePtr value = given_value(relation);
    if (value == nullptr && other.kind == Kind::kTuple) value = as_interval(relation);
    if (value == nullptr || value->kind == Kind::kRelation) return false;
    return gold_is ? same(*value, other) : same(other, *value);
  }

  bool same_both_relations(const Node& gold, const Node& answer) {
    if (matching_sides(gold, answer)) return true;
    const auto decides = [](const Node& n) { return n.text == "=" || n.text == "<" || n.text == "l" || n.text == "n"; };
    const Node a = upwards(gold), b = upwards(answer);
    return a.text == b.text && decides(a) && proportional(a, b);
  }

  // Side by side, also when one is written from right to left.
  bool matching_sides(const Node& gold, const Node& answer) {
    if (gold.text == answer.text && quietly_in_order(gold.args, answer.args)) return true;
    const Node turned = turned_around(answer);
    return gold.text == turned.text && quietly_in_order(gold.args, turned.args);
  }
  bool quietly_in_order(const std::vector<NodePtr>& gold, const std::vector<NodePtr>& answer) {
    if (gold.size() != answer.size()) return false;
    for (std::size_t i = 0; i < gold.size(); ++i)
      if (!quietly_same(*gold[i], *answer[i])) return false;
    return true;
  }
  static Node turned_around(const Node& n) {
    Node out = n;
    std::reverse(out.args.begin(), out.args.end());
    std::reverse(out.text.begin(), out.text.end());
    for (char& c : out.text) c = c == '<' ? '>' : c == '>' ? '<' : c == 'l' ? 'g' : c == 'g' ? 'l' : c;
    return out;
  }
  static Node upwards(const Node& n) { return n.text == ">" || n.text == "g" ? turned_around(n) : n; }

  // "2x = 84" and "x = 42": the differences of the sides have a constant ratio, positive for an inequality.
  bool proportional(const Node& a, const Node& b) {
    const auto is_plain = [](const Node& n) { return is_scalar(*n.args[0]) && is_scalar(*n.args[1]); };
    if (!is_plain(a) || !is_plain(b)) return false;
    Value first;
    int num_points = 0;
    for (int point = 0; point < kNumPoints; ++point) {
      try {
        const auto side = [&](const Node& n, std::size_t i) { return evaluate(*n.args[i], point, true, arithmetic_); };
        const Value ratio = arithmetic_.divide(arithmetic_.subtract(side(a, 0), side(a, 1)),
                                               arithmetic_.subtract(side(b, 0), side(b, 1)));
        if (num_points == 0) first = ratio;
        if (!arithmetic_.equal(ratio, first)) return false;
        ++num_points;
      } catch (const Undefined&) {  // not at this point
      }
    }
    if (num_points < 2 || arithmetic_.equal(first, integer(0))) return false;
    if (a.text == "=" || a.text == "n") return true;
    return is_real(first) && arithmetic_.less(integer(0), first);
  }

  const Rules& rules_;
  Budget& budget_;
  Arithmetic arithmetic_;
};

// "C" of "(C) 42" and "C. 42".
std::string choice_letter(const std::string& text) {
  const std::size_t at = !text.empty() && text[0] == '(' ? 1 : 0;
  if (text.size() < at + 2 || text[at] < 'A' || text[at] > 'J') return "";
  const char next = text[at + 1];
  return next == ')' || next == '.' || next == ':' ? std::string(1, text[at]) : "";
}

std::string lower_letters(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  }
  return text;
}

}  // namespace

Answer::Answer(std::string_view raw) {
  const std::string normalised = normalise(raw);
  text = without_spaces(normalised);
  try {
    node = parse(normalised);
  } catch (const Unreadable&) {
  }
}

bool same(const Answer& gold, const Answer& answer, const Rules& rules, Budget& budget) {
  if (gold.text.empty() || answer.text.empty()) return false;
  if (gold.text == answer.text) return true;
  if (gold.text.size() == 1 && choice_letter(answer.text) == gold.text) return true;
  const auto is_word = [](const Answer& a) { return a.node != nullptr && a.node->kind == Kind::kWord; };
  if (is_word(gold) || is_word(answer)) return lower_letters(gold.text) == lower_letters(answer.text);
  if (gold.node == nullptr || answer.node == nullptr) return false;
  try {
    return Comparison(rules, budget).same(*gold.node, *answer.node);
  } catch (const Undefined&) {
    return false;
  }
}

}  // namespace mortise::math
