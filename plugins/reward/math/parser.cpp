// The parser's operators, from the loosest to the tightest; atoms.cpp has what they connect.
#include <algorithm>
#include <optional>

#include "grammar.h"
#include "trees.h"
#include "vocabulary.h"

namespace mortise::math {
namespace {

constexpr int kMaxSuffixes = 40;  // each nests the tree once more

}  // namespace

NodePtr Parser::run() {
  if (NodePtr words = words_alone()) return words;
  NodePtr out = over_list();
  if (peek().kind != TokenKind::kEnd) throw Unreadable("left over: " + peek().text);
  return out;
}

NodePtr Parser::words_alone() {
  std::string text;
  for (const Token& t : tokens_) {
    if (t.kind == TokenKind::kEnd) break;
    if (t.kind != TokenKind::kWord) return nullptr;
    text += (text.empty() ? "" : " ") + t.text;
  }
  if (is_one_of(text, {"all real numbers", "all reals", "real numbers"})) return real_line();
  return text.empty() ? nullptr : make(Kind::kWord, {}, text);
}

NodePtr Parser::over_list() {
  NodePtr out = list();
  for (const Kind kind : {Kind::kDivide, Kind::kBinomial}) {
    if (!take_command(kind == Kind::kDivide ? "over" : "choose")) continue;
    NodePtr below = list();
    return make(kind, {std::move(out), std::move(below)});
  }
  return out;
}

NodePtr Parser::list() {
  std::vector<NodePtr> items;
  while (true) {
    while (take_sign(",") || take_sign(";")) {
    }
    if (!is_named_by_words()) skip_words();
    if (at_end()) break;
    items.push_back(relation());
    if (!is_sign(",") && !is_sign(";")) break;
  }
  if (items.empty()) throw Unreadable("nothing");
  return items.size() == 1 ? items[0] : make(Kind::kList, std::move(items));
}

bool Parser::at_end() const {
  if (peek().kind == TokenKind::kEnd || (bars_ > 0 && is_sign("|"))) return true;
  return peek().kind == TokenKind::kSign && is_one_of(peek().text, {")", "]", "}", "\\}", "&", "\\\\"});
}

NodePtr Parser::name_in_words() {
  std::string name;
  for (; peek().kind == TokenKind::kWord; ++i_) name += " " + peek().text;
  return make(Kind::kSymbol, {}, std::move(name));
}

NodePtr Parser::relation() {
  std::vector<NodePtr> sides{is_named_by_words() ? name_in_words() : set_expression()};
  std::string operators;
  while (const char c = relation_of(peek())) {
    ++i_;
    operators += c;
    sides.push_back(set_expression());
  }
  return sides.size() == 1 ? sides[0] : make(Kind::kRelation, std::move(sides), operators);
}

NodePtr Parser::set_expression() {
  NodePtr left = ratio();
  while (true) {
    const Kind kind = is_command("cup")        ? Kind::kUnion
                      : is_command("cap")      ? Kind::kIntersection
                      : is_command("setminus") ? Kind::kDifference
                                               : Kind::kNumber;
    if (kind == Kind::kNumber) return left;
    ++i_;
    NodePtr right = ratio();
    if (left->kind == kind && kind != Kind::kDifference) {
      std::vector<NodePtr> parts = left->args;
      parts.push_back(std::move(right));
      left = make(kind, std::move(parts));
    } else {
      left = make(kind, {std::move(left), std::move(right)});
    }
  }
}

NodePtr Parser::ratio() {
  std::vector<NodePtr> parts{sum()};
  while (take_sign(":")) parts.push_back(sum());
  return parts.size() == 1 ? parts[0] : make(Kind::kRatio, std::move(parts));
}

NodePtr Parser::sum() {
  std::vector<NodePtr> terms;
  char sign = sign_here();
  if (sign != 0) ++i_;
  terms.push_back(with_sign(sign == 0 ? '+' : sign, product()));
  while ((sign = sign_here()) != 0) {
    ++i_;
    terms.push_back(with_sign(sign, product()));
  }
  return modulo(terms.size() == 1 ? terms[0] : make(Kind::kAdd, std::move(terms)));
}

NodePtr Parser::modulo(NodePtr node) {
  const bool bracketed = is_bracketed_modulus(), braced = is_command("pmod");
  if (!bracketed && !braced && !is_command("mod") && !is_command("bmod")) return node;
  const bool is_class = !is_command("bmod");
  i_ += bracketed ? 2 : 1;
  NodePtr modulus = bracketed ? product() : braced ? argument() : signed_power();
  if (bracketed) want_sign(")");
  return make(Kind::kModulo, {std::move(node), std::move(modulus)}, is_class ? "class" : "");
}

NodePtr Parser::product() {
  NodePtr left = signed_power();
  std::vector<NodePtr> factors{left};
  const auto joined = [&] { return factors.size() == 1 ? factors[0] : make(Kind::kMultiply, std::move(factors)); };
  while (true) {
    if (take_sign("*")) {
      factors.push_back(signed_power());
    } else if (skip_unit_quotient()) {
      continue;
    } else if (take_sign("/")) {
      NodePtr divisor = signed_power();
      NodePtr quotient = make(Kind::kDivide, {joined(), std::move(divisor)});
      factors = {std::move(quotient)};
    } else if (starts_factor()) {
      implicit_factor(factors);
    } else {
      return joined();
    }
  }
}

bool Parser::skip_unit_quotient() {
  const auto is_letter_of = [&](std::size_t ahead, std::initializer_list<std::string_view> units) {
    return peek(ahead).kind == TokenKind::kLetter && is_one_of(peek(ahead).text, units);
  };
  const auto is_slash = [&](std::size_t ahead) {
    return peek(ahead).kind == TokenKind::kSign && peek(ahead).text == "/";
  };
  if (i_ == 0) return false;
  const Token& before = tokens_[i_ - 1];
  if (before.kind == TokenKind::kWord && is_slash(0)) {
    if (peek(1).kind != TokenKind::kWord && !is_letter_of(1, {"s", "h", "g", "m", "l", "L"})) return false;
    i_ += 2;
  } else if (before.kind == TokenKind::kNumber && is_letter_of(0, {"m"}) && is_slash(1) && is_letter_of(2, {"s"})) {
    const bool squared = peek(3).text == "^" && peek(4).kind == TokenKind::kNumber;
    const bool braced = peek(3).text == "^" && peek(4).text == "{" && peek(6).text == "}";
    if (peek(squared ? 5 : braced ? 7 : 3).kind != TokenKind::kEnd) return false;
    i_ += 3;
  } else {
    return false;
  }
  if (take_sign("^")) exponent();
  return true;
}

void Parser::implicit_factor(std::vector<NodePtr>& factors) {
  const NodePtr last = factors.back();
  const bool whole = last->kind == Kind::kNumber && !last->decimal && factors.size() == 1;
  if (peek().kind == TokenKind::kNumber) {
    if (last->kind == Kind::kNumber) {
      if (!whole || peek(1).text != "/" || peek(2).kind != TokenKind::kNumber) throw Unreadable("two numbers");
      const mpq_class below = peek(2).number;
      if (below == 0) throw Unreadable("division by 0");
      NodePtr part = make(Kind::kDivide, {make_number(peek().number), make_number(below)});
      i_ += 3;
      factors.back() = make(Kind::kAdd, {last, std::move(part)});
      if (take_sign("%")) factors.back() = make(Kind::kPercent, {factors.back()});
      if (peek().kind == TokenKind::kWord) unit(factors.back());
      return;
    }
    if (last->kind == Kind::kSymbol && !peek().after_space) throw Unreadable("a digit behind a letter");
  }
  NodePtr next = power();
  if (NodePtr sum = whole ? mixed_number(last, next) : nullptr) {
    factors.back() = std::move(sum);
  } else {
    factors.push_back(std::move(next));
  }
}

bool Parser::starts_factor() const {
  const Token& t = peek();
  if (t.kind == TokenKind::kNumber || t.kind == TokenKind::kLetter) return true;
  if (is_bracketed_modulus()) return false;
  if (t.kind == TokenKind::kSign) return is_one_of(t.text, {"(", "[", "{", "\\{"}) || (t.text == "|" && bars_ == 0);
  if (t.kind != TokenKind::kCommand) return false;
  return is_function(t.text) || is_of_several(t.text) || is_greek(t.text) || is_decoration(t.text) ||
         is_one_of(t.text, {"frac", "sqrt", "binom", "pi", "infty", "lfloor", "lceil", "begin", "emptyset", "reals"});
}

NodePtr Parser::signed_power() {
  skip_words();
  const char sign = sign_here();
  if (sign == 0) return power();
  const Nested nested(depth_);
  ++i_;
  return with_sign(sign, signed_power());
}

NodePtr Parser::power() {
  const Nested nested(depth_);
  NodePtr node = primary();
  for (int count = 0;; ++count) {
    if (count > kMaxSuffixes) throw Unreadable("too much behind a number");
    if (take_sign("!")) {
      if (is_sign("!")) throw Unreadable("a double factorial");
      node = make(Kind::kFactorial, {std::move(node)});
    } else if (take_sign("%")) {
      node = make(Kind::kPercent, {std::move(node)});
    } else if (is_sign("^")) {
      node = raised(std::move(node));
    } else if (peek().kind == TokenKind::kWord) {
      unit(node);
    } else {
      return node;
    }
  }
}

void Parser::unit(NodePtr& node) {
  const bool percent = is_one_of(peek().text, {"percent", "per cent"});
  for (; peek().kind == TokenKind::kWord; ++i_) node = scaled_by(std::move(node), peek().text);
  if (percent) node = make(Kind::kPercent, {std::move(node)});
  if (is_sign("^")) {
    ++i_;
    exponent();
  }
}

NodePtr Parser::raised(NodePtr base) {
  want_sign("^");
  const bool braced = is_sign("{") && peek(1).text == "circ" && peek(2).text == "}";
  if (is_command("circ") || braced) {
    i_ += braced ? 3 : 1;
    if (peek().kind == TokenKind::kLetter && is_one_of(peek().text, {"C", "F"})) ++i_;  // Celsius or Fahrenheit
    return make(Kind::kDegrees, {std::move(base)});
  }
  if (base->kind == Kind::kNumber && skip_ordinal()) return base;
  return make(Kind::kPower, {std::move(base), exponent()});
}

NodePtr Parser::exponent() {
  const Nested nested(depth_);
  if (take_sign("-")) return make(Kind::kNegate, {exponent()});
  NodePtr node = is_sign("{") ? group() : one_token();
  if (is_sign("^")) return make(Kind::kPower, {std::move(node), (want_sign("^"), exponent())});
  return node;
}

NodePtr parse(std::string_view normalised) { return Parser(normalised).run(); }

}  // namespace mortise::math
