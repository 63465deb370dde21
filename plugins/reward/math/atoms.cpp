// The parser's atoms: numbers, symbols, commands, functions, and everything in brackets.
#include <algorithm>
#include <optional>

#include "grammar.h"
#include "trees.h"
#include "vocabulary.h"

namespace mortise::math {

NodePtr Parser::primary() {
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

NodePtr Parser::number() {
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

NodePtr Parser::letter() {
  const std::string name = peek().text;
  ++i_;
  if (name == "e" && !is_sign("_")) return make(Kind::kEuler);
  if (name == "i" && !is_sign("_")) return make(Kind::kImaginary);
  return symbol(name);
}

NodePtr Parser::symbol(std::string name) {
  if (take_sign("_")) name += "_" + raw_argument();
  while (take_sign("'")) name += "'";
  return make(Kind::kSymbol, {}, name);
}

std::string Parser::raw_argument() {
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

NodePtr Parser::command() {
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

NodePtr Parser::argument() {
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

NodePtr Parser::two_arguments(Kind kind) {
  NodePtr first = argument();
  NodePtr second = argument();
  return make(kind, {std::move(first), std::move(second)});
}

NodePtr Parser::root() {
  NodePtr degree = make_number(2);
  if (take_sign("[")) {
    degree = sum();
    want_sign("]");
  }
  // Written without a backslash, sqrt(...) takes the brackets; \sqrt(...) is read alike.
  NodePtr inside = argument();
  return make(Kind::kRoot, {std::move(inside), std::move(degree)});
}

NodePtr Parser::between(std::string_view closing, Kind kind) {
  NodePtr inside = sum();
  if (!take_command(closing)) throw Unreadable("no \\" + std::string(closing));
  return make(kind, {std::move(inside)});
}

NodePtr Parser::function(const std::string& name) {
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

NodePtr Parser::of_several(const std::string& name) {
  if (!is_sign("(") && !is_sign("\\{")) throw Unreadable("\\" + name + " of what");
  const NodePtr inside = is_sign("(") ? tuple() : set();
  if (inside->args.size() < 2 || (inside->kind != Kind::kTuple && inside->kind != Kind::kSet))
    throw Unreadable("\\" + name + " of one");
  return make(Kind::kOfSeveral, inside->args, name);
}

bool Parser::is_minus_one(const Node& n) {
  return n.kind == Kind::kNegate && n.args[0]->kind == Kind::kNumber && n.args[0]->number == 1;
}

NodePtr Parser::bare_argument() {
  const char sign = sign_here();
  if (sign != 0) ++i_;
  std::vector<NodePtr> factors{power()};
  while (starts_factor() && !(peek().kind == TokenKind::kCommand && is_function(peek().text))) implicit_factor(factors);
  NodePtr out = factors.size() == 1 ? factors[0] : make(Kind::kMultiply, std::move(factors));
  if (is_sign("/") && peek(1).kind == TokenKind::kNumber && !contains(*out, Kind::kSymbol)) {
    ++i_;
    out = make(Kind::kDivide, {std::move(out), number()});
  }
  return sign == 0 ? out : with_sign(sign, std::move(out));
}

NodePtr Parser::group() {
  want_sign("{");
  const int bars = std::exchange(bars_, 0);
  NodePtr inside = over_list();
  bars_ = bars;
  want_sign("}");
  return inside;
}

NodePtr Parser::tuple() {
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

NodePtr Parser::set() {
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

NodePtr Parser::bars() {
  want_sign("|");
  ++bars_;
  NodePtr inside = sum();
  --bars_;
  want_sign("|");
  return make(Kind::kAbsolute, {std::move(inside)});
}

NodePtr Parser::matrix() {
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

}  // namespace mortise::math
