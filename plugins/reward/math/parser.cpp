// A recursive-descent parser from tokens to a tree.
#include "parser.h"

#include <algorithm>
#include <optional>

#include "cursor.h"
#include "trees.h"
#include "vocabulary.h"

namespace mortise::math {
namespace {

constexpr int kMaxSuffixes = 40;  // each nests the tree once more

class Parser : Cursor {
 public:
  explicit Parser(std::string_view text) : Cursor(text) {}

  NodePtr run() {
    if (NodePtr words = words_alone()) return words;
    NodePtr out = over_list();
    if (peek().kind != TokenKind::kEnd) throw Unreadable("left over: " + peek().text);
    return out;
  }

 private:
  NodePtr words_alone() {
    std::string text;
    for (const Token& t : tokens_) {
      if (t.kind == TokenKind::kEnd) break;
      if (t.kind != TokenKind::kWord) return nullptr;
      text += (text.empty() ? "" : " ") + t.text;
    }
    if (is_one_of(text, {"all real numbers", "all reals", "real numbers"})) return real_line();
    return text.empty() ? nullptr : make(Kind::kWord, {}, text);
  }

  // --- from the loosest to the tightest
  // "a \over b" and "a \choose b" take all of their group.
  NodePtr over_list() {
    NodePtr out = list();
    for (const Kind kind : {Kind::kDivide, Kind::kBinomial}) {
      if (!take_command(kind == Kind::kDivide ? "over" : "choose")) continue;
      NodePtr below = list();
      return make(kind, {std::move(out), std::move(below)});
    }
    return out;
  }
  NodePtr list() {
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
  [[nodiscard]] bool at_end() const {
    if (peek().kind == TokenKind::kEnd || (bars_ > 0 && is_sign("|"))) return true;
    return peek().kind == TokenKind::kSign && is_one_of(peek().text, {")", "]", "}", "\\}", "&", "\\\\"});
  }

  NodePtr name_in_words() {
    std::string name;
    for (; peek().kind == TokenKind::kWord; ++i_) name += " " + peek().text;
    return make(Kind::kSymbol, {}, std::move(name));
  }

  NodePtr relation() {
    std::vector<NodePtr> sides{is_named_by_words() ? name_in_words() : set_expression()};
    std::string operators;
    while (const char c = relation_of(peek())) {
      ++i_;
      operators += c;
      sides.push_back(set_expression());
    }
    return sides.size() == 1 ? sides[0] : make(Kind::kRelation, std::move(sides), operators);
  }

  NodePtr set_expression() {
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

  NodePtr ratio() {
    std::vector<NodePtr> parts{sum()};
    while (take_sign(":")) parts.push_back(sum());
    return parts.size() == 1 ? parts[0] : make(Kind::kRatio, std::move(parts));
  }

  NodePtr sum() {
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
  // "7 \bmod 5" is a number, "7 \pmod{5}" and "7 (mod 5)" are all that leave the same.
  NodePtr modulo(NodePtr node) {
    const bool bracketed = is_bracketed_modulus(), braced = is_command("pmod");
    if (!bracketed && !braced && !is_command("mod") && !is_command("bmod")) return node;
    const bool is_class = !is_command("bmod");
    i_ += bracketed ? 2 : 1;
    NodePtr modulus = bracketed ? product() : braced ? argument() : signed_power();
    if (bracketed) want_sign(")");
    return make(Kind::kModulo, {std::move(node), std::move(modulus)}, is_class ? "class" : "");
  }

  NodePtr product() {
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

  // "km/h" behind a number, "m/s" and "m/s^2" at the end of all.
  bool skip_unit_quotient() {
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

  // "3\frac{1}{2}" and "3 1/2" are sums.
  void implicit_factor(std::vector<NodePtr>& factors) {
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

  [[nodiscard]] bool starts_factor() const {
    const Token& t = peek();
    if (t.kind == TokenKind::kNumber || t.kind == TokenKind::kLetter) return true;
    if (is_bracketed_modulus()) return false;
    if (t.kind == TokenKind::kSign) return is_one_of(t.text, {"(", "[", "{", "\\{"}) || (t.text == "|" && bars_ == 0);
    if (t.kind != TokenKind::kCommand) return false;
    return is_function(t.text) || is_of_several(t.text) || is_greek(t.text) || is_decoration(t.text) ||
           is_one_of(t.text, {"frac", "sqrt", "binom", "pi", "infty", "lfloor", "lceil", "begin", "emptyset", "reals"});
  }

  NodePtr signed_power() {
    skip_words();
    const char sign = sign_here();
    if (sign == 0) return power();
    const Nested nested(depth_);
    ++i_;
    return with_sign(sign, signed_power());
  }

  NodePtr power() {
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

  // "cm", "cm^2", "percent", "million people".
  void unit(NodePtr& node) {
    const bool percent = is_one_of(peek().text, {"percent", "per cent"});
    for (; peek().kind == TokenKind::kWord; ++i_) node = scaled_by(std::move(node), peek().text);
    if (percent) node = make(Kind::kPercent, {std::move(node)});
    if (is_sign("^")) {
      ++i_;
      exponent();
    }
  }

  NodePtr raised(NodePtr base) {
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
  NodePtr exponent() {
    const Nested nested(depth_);
    if (take_sign("-")) return make(Kind::kNegate, {exponent()});
    NodePtr node = is_sign("{") ? group() : one_token();
    if (is_sign("^")) return make(Kind::kPower, {std::move(node), (want_sign("^"), exponent())});
    return node;
  }

  // --- atoms
  NodePtr primary() {
    const Nested nested(depth_);
    const Token t = peek();
    if (t.kind == TokenKind::kNumber) return number();
    if (t.kind == TokenKind::kLetter) {
      NodePtr node = letter();
      // "x1" is the name "x_1", no product.
      const bool digits = peek().kind == TokenKind::kNumber && !peek().after_space;
      if (!digits || node->text != t.text || peek().text.find_first_not_of("0123456789") != std::string::npos)
        return node;
      return symbol(t.text + "_" + tokens_[i_++].text);
    }
    if (t.kind == TokenKind::kCommand) return command();
    if (t.kind == TokenKind::kSign) {
      if (t.text == "{") return group();
      if (t.text == "(" || t.text == "[") return tuple();
      if (t.text == "\\{") return set();
      if (t.text == "|") return bars();
    }
    throw Unreadable(t.kind == TokenKind::kEnd ? "an end" : "an unexpected " + t.text);
  }

  NodePtr number() {
    const Token t = peek();
    ++i_;
    if (!is_sign("_")) return make_number(t.number, t.decimal);
    ++i_;
    const bool braced = take_sign("{");
    const Token base = peek();
    if (base.kind != TokenKind::kNumber || t.decimal || base.decimal) throw Unreadable("a subscript");
    ++i_;
    if (braced) want_sign("}");
    return make(Kind::kBased, {}, t.text + "_" + base.text);
  }

  // What TeX takes as an argument without braces: one letter of "x2".
  NodePtr one_token() { return peek().kind == TokenKind::kLetter ? letter() : primary(); }
  NodePtr letter() {
    const std::string name = peek().text;
    ++i_;
    if (name == "e" && !is_sign("_")) return make(Kind::kEuler);
    if (name == "i" && !is_sign("_")) return make(Kind::kImaginary);
    return symbol(name);
  }

  // With subscript and primes.
  NodePtr symbol(std::string name) {
    if (take_sign("_")) name += "_" + raw_argument();
    while (take_sign("'")) name += "'";
    return make(Kind::kSymbol, {}, name);
  }
  // The tokens of the next argument as text.
  std::string raw_argument() {
    std::string text;
    int open = 0;
    do {
      const Token& t = peek();
      if (t.kind == TokenKind::kEnd) throw Unreadable("an open group");
      if (t.kind == TokenKind::kSign) open += t.text == "{" ? 1 : t.text == "}" ? -1 : 0;
      if (open < 0) throw Unreadable("no argument");
      if (t.text != "{" && t.text != "}") text += t.text;
      ++i_;
    } while (open > 0);
    return text;
  }

  NodePtr command() {
    const std::string name = peek().text;
    ++i_;
    if (name == "frac") return two_arguments(Kind::kDivide);
    if (name == "binom") return two_arguments(Kind::kBinomial);
    if (name == "sqrt") return root();
    if (name == "pi") return is_sign("_") ? symbol("pi") : make(Kind::kPi);
    if (name == "infty") return make(Kind::kInfinity);
    if (name == "emptyset") return make(Kind::kSet);
    if (name == "reals") return real_line();
    if (name == "lfloor") return between("rfloor", Kind::kFloor);
    if (name == "lceil") return between("rceil", Kind::kCeiling);
    if (name == "begin") return matrix();
    if (is_function(name)) return function(name);
    if (is_of_several(name)) return of_several(name);
    if (is_greek(name)) return symbol("\\" + name);
    if (is_decoration(name)) return symbol("\\" + name + ":" + raw_argument());
    throw Unreadable("\\" + name);
  }

  // A group, or one token: \frac12.
  NodePtr argument() {
    skip_words();
    if (is_sign("{")) return group();
    const Token t = peek();
    if (t.kind == TokenKind::kNumber && t.text.size() > 1) {  // only its first digit
      if (t.text.find_first_not_of("0123456789") != std::string::npos) throw Unreadable("an argument without braces");
      Token& rest = tokens_[i_];
      rest.text.erase(0, 1);
      rest.number = mpq_class(mpz_class(rest.text, 10));
      return make_number(mpq_class(t.text[0] - '0'));
    }
    return one_token();
  }
  NodePtr two_arguments(Kind kind) {
    NodePtr first = argument();
    NodePtr second = argument();
    return make(kind, {std::move(first), std::move(second)});
  }
  NodePtr root() {
    NodePtr degree = make_number(2);
    if (take_sign("[")) {
      degree = sum();
      want_sign("]");
    }
    // Written without a backslash, sqrt(...) takes the brackets; \sqrt(...) is read alike.
    NodePtr inside = argument();
    return make(Kind::kRoot, {std::move(inside), std::move(degree)});
  }
  NodePtr between(std::string_view closing, Kind kind) {
    NodePtr inside = sum();
    if (!take_command(closing)) throw Unreadable("no \\" + std::string(closing));
    return make(kind, {std::move(inside)});
  }

  NodePtr function(const std::string& name) {
    const Nested nested(depth_);
    NodePtr base, raised_to;
    if (name == "log" && take_sign("_")) base = is_sign("{") ? group() : primary();
    if (take_sign("^")) raised_to = exponent();
    NodePtr inside = is_sign("(") || is_sign("[") || is_sign("{") ? primary() : bare_argument();
    if (!is_scalar(*inside)) throw Unreadable("a function of several");
    NodePtr out;
    if (raised_to != nullptr && is_minus_one(*raised_to)) {
      out = make(Kind::kFunction, {std::move(inside)}, "arc" + name);
      raised_to = nullptr;
    } else if (name == "log" && base != nullptr) {
      out = make(Kind::kLog, {std::move(inside), std::move(base)});
    } else {
      out = name == "log" ? make(Kind::kLog, {std::move(inside), make_number(10)})
                          : make(Kind::kFunction, {std::move(inside)}, name);
    }
    return raised_to == nullptr ? out : make(Kind::kPower, {std::move(out), std::move(raised_to)});
  }
  NodePtr of_several(const std::string& name) {
    if (!is_sign("(") && !is_sign("\\{")) throw Unreadable("\\" + name + " of what");
    const NodePtr inside = is_sign("(") ? tuple() : set();
    if (inside->args.size() < 2 || (inside->kind != Kind::kTuple && inside->kind != Kind::kSet))
      throw Unreadable("\\" + name + " of one");
    return make(Kind::kOfSeveral, inside->args, name);
  }
  static bool is_minus_one(const Node& n) {
    return n.kind == Kind::kNegate && n.args[0]->kind == Kind::kNumber && n.args[0]->number == 1;
  }
  // "\sin 2x": factors up to the next sign or function; a constant over a number too, as in "\sin \pi/6".
  NodePtr bare_argument() {
    const char sign = sign_here();
    if (sign != 0) ++i_;
    std::vector<NodePtr> factors{power()};
    while (starts_factor() && !(peek().kind == TokenKind::kCommand && is_function(peek().text)))
      implicit_factor(factors);
    NodePtr out = factors.size() == 1 ? factors[0] : make(Kind::kMultiply, std::move(factors));
    if (is_sign("/") && peek(1).kind == TokenKind::kNumber && !contains(*out, Kind::kSymbol)) {
      ++i_;
      out = make(Kind::kDivide, {std::move(out), number()});
    }
    return sign == 0 ? out : with_sign(sign, std::move(out));
  }

  NodePtr group() {
    want_sign("{");
    const int bars = std::exchange(bars_, 0);
    NodePtr inside = over_list();
    bars_ = bars;
    want_sign("}");
    return inside;
  }

  NodePtr tuple() {
    const std::string open = peek().text;
    ++i_;
    const int bars = std::exchange(bars_, 0);
    std::vector<NodePtr> items;
    if (!is_sign(")") && !is_sign("]")) {
      NodePtr inside = list();
      if (inside->kind == Kind::kList) {
        items = inside->args;
      } else {
        items.push_back(std::move(inside));
      }
    }
    bars_ = bars;
    const std::string close = peek().text;
    if (!take_sign(")") && !take_sign("]")) throw Unreadable("an open bracket");
    if (items.size() != 1) return make(Kind::kTuple, std::move(items), open + close);
    if ((open == "(") != (close == ")")) throw Unreadable("brackets that do not match");
    return items[0];
  }

  NodePtr set() {
    want_sign("\\{");
    if (skip_such_that()) {
      NodePtr condition = list();
      want_sign("\\}");
      return condition;
    }
    std::vector<NodePtr> items;
    if (!is_sign("\\}")) {
      NodePtr inside = list();
      if (inside->kind == Kind::kList) {
        items = inside->args;
      } else {
        items.push_back(std::move(inside));
      }
    }
    want_sign("\\}");
    return make(Kind::kSet, std::move(items));
  }

  NodePtr bars() {
    want_sign("|");
    ++bars_;
    NodePtr inside = sum();
    --bars_;
    want_sign("|");
    return make(Kind::kAbsolute, {std::move(inside)});
  }

  NodePtr matrix() {
    const Nested nested(depth_);
    const std::string name = raw_argument();
    if (name != "matrix" && name != "vmatrix") throw Unreadable("an environment");
    // Its terms share their cells: within one another they would be as many as the power of their depth.
    if (name == "vmatrix" && in_determinant_) throw Unreadable("a determinant within a determinant");
    in_determinant_ = in_determinant_ || name == "vmatrix";
    std::vector<NodePtr> cells;
    std::size_t columns = 0, row = 0;
    const auto end_row = [&] {
      if (columns == 0) columns = row;
      if (row != columns) throw Unreadable("rows of different length");
      row = 0;
    };
    while (!is_command("end")) {
      cells.push_back(relation());
      ++row;
      if (take_sign("&")) continue;
      end_row();
      if (!take_sign("\\\\")) break;
    }
    if (row != 0) end_row();
    if (!take_command("end") || raw_argument() != name) throw Unreadable("an open matrix");
    if (name == "vmatrix") {
      in_determinant_ = false;
      return determinant(cells, columns);
    }
    auto node = std::make_shared<Node>();
    node->kind = Kind::kMatrix;
    node->args = std::move(cells);
    node->columns = columns;
    return node;
  }

  int bars_ = 0;  // open |, in which the next one closes
  bool in_determinant_ = false;
};

}  // namespace

NodePtr parse(std::string_view normalised) { return Parser(normalised).run(); }

}  // namespace mortise::math
