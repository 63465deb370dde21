// Compares trees by their form: numbers, sets, intervals, matrices, relations, choices and texts.
#include "compare.h"

#include <algorithm>
#include <cmath>

#include "evaluate.h"
#include "node_forms.h"
#include "normalise.h"
#include "parser.h"
#include "real_set.h"
#include "relations.h"
#include "scan.h"

namespace mortise::math {
namespace {

constexpr std::size_t kMaxItems = 200;  // items of a set or a list

class Comparison {
 public:
  Comparison(const Rules& rules, Budget& budget) : rules_(rules), budget_(budget), arithmetic_(budget) {}

  bool same(const Node& gold, const Node& answer) {
    budget_.spend(50);
    if (is_scalar(gold) && is_scalar(answer)) return same_scalars(gold, answer);
    if (is_set_operation(gold) || is_set_operation(answer)) return same_unions(gold, answer);
    if (gold.kind == Kind::kRelation || answer.kind == Kind::kRelation) return same_relations(gold, answer);
    if (gold.kind == Kind::kList || gold.kind == Kind::kSet || answer.kind == Kind::kList || answer.kind == Kind::kSet)
      return same_collections(gold, answer);
    if (gold.kind == Kind::kRatio || answer.kind == Kind::kRatio) return same_ratios(gold, answer);
    if (contains(gold, Kind::kMatrix) || contains(answer, Kind::kMatrix)) return same_matrices(gold, answer);
    if (gold.kind == Kind::kBased || answer.kind == Kind::kBased) return same_based(gold, answer);
    if (&unnamed(gold) != &gold || &unnamed(answer) != &answer) return same(unnamed(gold), unnamed(answer));
    if (gold.kind != answer.kind) return false;
    switch (gold.kind) {
      case Kind::kWord:
        return gold.text == answer.text;
      case Kind::kTuple:
        return same_tuples(gold, answer);
      default:
        return false;
    }
  }

 private:
  // --- one number, maybe with symbols
  bool same_scalars(const Node& gold, const Node& answer) {
    const bool both_signs = contains(gold, Kind::kPlusMinus) || contains(answer, Kind::kPlusMinus);
    if (both_signs) return same_pairs(gold, answer);
    if (gold.kind == Kind::kModulo && answer.kind == Kind::kModulo && gold.text == answer.text && !gold.text.empty() &&
        !same(*gold.args[1], *answer.args[1]))
      return false;
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
    const mpq_class gold_unit = unit_of(gold), answer_unit = unit_of(answer);
    if (gold_unit == answer_unit || (gold_unit != 1 && answer_unit != 1)) return false;
    return same_values(arithmetic_.divide(x, Exact{gold_unit, 0}), arithmetic_.divide(y, Exact{answer_unit, 0}),
                       decimals);
  }

  bool is_close(const Value& x, const Value& y, double relative) {
    if (!is_real(x) || !is_real(y)) return false;
    const Value a = arithmetic_.absolute(x), b = arithmetic_.absolute(y);
    const Value bound = arithmetic_.multiply(Exact{mpq_class(relative), 0}, arithmetic_.less(a, b) ? b : a);
    return !arithmetic_.less(bound, arithmetic_.absolute(arithmetic_.subtract(x, y)));
  }

  bool same_values(const Value& x, const Value& y, const bool (&decimals)[2]) {
    return same_as_written(x, y, decimals) || (rules_.relative > 0 && is_close(x, y, rules_.relative));
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
  // An item without a value equals none, but its work counts.
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

  bool same_collections(const Node& gold, const Node& answer) {
    // A bare "1, 2" may be meant as the tuple (1, 2), and the other way round.
    const auto is_row = [](const Node& n) { return n.kind == Kind::kTuple && n.text == "()"; };
    if (gold.kind == Kind::kTuple || answer.kind == Kind::kTuple) {
      // "x > 1, x < 5" is (1, 5).
      const Node& other = gold.kind == Kind::kTuple ? answer : gold;
      const auto is_bound = [](const NodePtr& n) { return n->kind == Kind::kRelation && n->text != "="; };
      if (std::any_of(other.args.begin(), other.args.end(), is_bound)) return same_unions(gold, answer);
    }
    if (is_row(gold) || is_row(answer)) {
      const bool gold_is = is_row(gold);
      const Node& other = gold_is ? answer : gold;
      if (other.kind != Kind::kList) return false;
      const std::vector<NodePtr> given = given_values(other.args);
      return gold_is ? same_in_order(gold.args, given) : same_in_order(given, answer.args);
    }
    return same_in_any_order(members(gold), members(answer));
  }

  // With two members, the brackets distinguish intervals.
  bool same_tuples(const Node& gold, const Node& answer) {
    if (gold.args.size() == 2 && gold.text != answer.text) return false;
    return same_in_order(gold.args, answer.args);
  }

  // Member by member, or as sets of real numbers.
  bool same_unions(const Node& gold, const Node& answer) {
    if (gold.kind == answer.kind) {
      const bool ordered = gold.kind == Kind::kDifference;
      if (ordered ? quietly_in_order(gold.args, answer.args) : same_in_any_order(gold.args, answer.args)) return true;
    }
    const auto wanted = real_set_of(gold, arithmetic_, budget_), given = real_set_of(answer, arithmetic_, budget_);
    return wanted && given && same_sets(*wanted, *given, arithmetic_);
  }

  bool same_matrices(const Node& gold, const Node& answer) {
    const NodePtr wanted = as_matrix(gold), given = as_matrix(answer);
    return wanted != nullptr && given != nullptr && wanted->columns == given->columns &&
           same_in_order(wanted->args, given->args);
  }

  // The base need not be said, as in "write 10 in base 2".
  static bool same_based(const Node& gold, const Node& answer) {
    if (gold.kind == answer.kind) return gold.text == answer.text;
    const Node& based = gold.kind == Kind::kBased ? gold : answer;
    const Node& other = gold.kind == Kind::kBased ? answer : gold;
    return other.kind == Kind::kNumber && other.number.get_den() == 1 && !other.decimal &&
           other.number.get_num().get_str() == based.text.substr(0, based.text.find('_'));
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
    if (value == nullptr && other.kind == Kind::kTuple && relation.text == "n") return same_unions(gold, answer);
    if (value == nullptr || value->kind == Kind::kRelation || !holds(relation)) return false;
    return gold_is ? same(*value, other) : same(other, *value);
  }

  // "2 = 3" gives nothing; "2/3 = 0.67" is meant.
  bool holds(const Node& n) {
    const auto is_constant = [](const NodePtr& side) { return is_scalar(*side) && !contains(*side, Kind::kSymbol); };
    if (n.text.find_first_not_of('=') != std::string::npos) return true;
    if (!std::all_of(n.args.begin(), n.args.end(), is_constant)) return true;
    const Value last = evaluate(*n.args.back(), 0, true, arithmetic_);
    return std::all_of(n.args.begin(), n.args.end(), [&](const NodePtr& side) {
      const Value value = evaluate(*side, 0, true, arithmetic_);
      return arithmetic_.equal(value, last) || is_close(value, last, 0.01);
    });
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

NodePtr parsed(std::string_view normalised) {
  try {
    return parse(normalised);
  } catch (const Unreadable&) {
    return nullptr;
  }
}

// The text after the single "=" of "\lim_{x \to 0} f(x) = 5"; nothing if there is none.
std::string_view right_side(std::string_view normalised) {
  const std::size_t at = normalised.rfind('=');
  if (at == kNone || at == 0 || normalised.find('=') != at || normalised.find(',') != kNone) return {};
  return is_one_of(normalised.substr(at - 1, 1), {"<", ">", "!"}) ? std::string_view() : normalised.substr(at + 1);
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
  node = parsed(normalised);
  if (node == nullptr) node = parsed(right_side(normalised));
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
