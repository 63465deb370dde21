// Expressions: precedence climbing by one method per level, as Jinja binds them: if-else, or, and, not, comparisons,
// + -, ~, * / // %, **, unary - + with filters behind, postfix. See parser.h.
#include <algorithm>
#include <cstdlib>

#include "foundation/base/text.h"
#include "text/template/parser_nodes.h"

namespace mortise::jinja {
namespace {

constexpr int kMaxDepth = 600;  // depth of an expression's tree

}  // namespace

Symbol ExprParser::intern(const std::string& name) {
  const auto [it, is_new] = symbol_of_.try_emplace(name, static_cast<Symbol>(symbols_.size()));
  if (is_new) symbols_.push_back(name);
  return it->second;
}

Result<ExprPtr> ExprParser::finish(ExprPtr node) {
  int depth = 0;
  const auto take = [&](const ExprPtr& child) {
    if (child != nullptr) depth = std::max(depth, child->depth);
  };
  for (const ExprPtr& item : node->items) take(item);
  if (node->args != nullptr) {
    for (const ExprPtr& item : node->args->positional) take(item);
    for (const auto& [name, item] : node->args->keyword) take(item);
    take(node->args->star);
    take(node->args->double_star);
  }
  node->depth = depth + 1;
  if (node->depth > kMaxDepth) return stream_.fail_at("an expression is nested too deeply", node->place);
  return node;
}

Result<ExprPtr> ExprParser::make_binary(Operator op, ExprPtr left, ExprPtr right, Place place) {
  ExprPtr node = make(ExprKind::kBinary, place, std::move(left));
  node->items.push_back(std::move(right));
  node->ops.push_back(op);
  return finish(std::move(node));
}

Result<ExprPtr> ExprParser::expression(bool with_condition) {
  const DepthGuard guard(*this);
  if (guard.too_deep()) return stream_.fail("an expression is nested too deeply");
  return with_condition ? condition_expr() : or_expr();
}

Result<ExprPtr> ExprParser::condition_expr() {
  const Place place = stream_.place();
  const std::optional<Error> unknown_before = unknown;
  ExprPtr value = TRY(or_expr());
  while (stream_.skip_name("if")) {
    ExprPtr node = make(ExprKind::kCondition, place, TRY(or_expr()));
    node->items.push_back(std::move(value));
    if (stream_.skip_name("else")) {
      const DepthGuard guard(*this);
      if (guard.too_deep()) return stream_.fail("an expression is nested too deeply");
      node->items.push_back(TRY(condition_expr()));
    }
    value = TRY(finish(std::move(node)));
    unknown = unknown_before;
  }
  return value;
}

Result<ExprPtr> ExprParser::or_expr() {
  ExprPtr left = TRY(and_expr());
  while (stream_.at_name("or")) {
    const Place place = stream_.next().place;
    ExprPtr node = make(ExprKind::kOr, place, std::move(left));
    node->items.push_back(TRY(and_expr()));
    left = TRY(finish(std::move(node)));
  }
  return left;
}

Result<ExprPtr> ExprParser::and_expr() {
  ExprPtr left = TRY(not_expr());
  while (stream_.at_name("and")) {
    const Place place = stream_.next().place;
    ExprPtr node = make(ExprKind::kAnd, place, std::move(left));
    node->items.push_back(TRY(not_expr()));
    left = TRY(finish(std::move(node)));
  }
  return left;
}

Result<ExprPtr> ExprParser::not_expr() {
  if (!stream_.at_name("not")) return compare();
  const Place place = stream_.next().place;
  const DepthGuard guard(*this);
  if (guard.too_deep()) return stream_.fail("an expression is nested too deeply");
  return finish(make(ExprKind::kNot, place, TRY(not_expr())));
}

Result<ExprPtr> ExprParser::compare() {
  static constexpr std::pair<std::string_view, Operator> kCompare[] = {{"==", Operator::kEq}, {"!=", Operator::kNe},
                                                                       {"<=", Operator::kLe}, {">=", Operator::kGe},
                                                                       {"<", Operator::kLt},  {">", Operator::kGt}};
  const Place place = stream_.place();
  ExprPtr first = TRY(math1());
  ExprPtr node = make(ExprKind::kCompare, place, std::move(first));
  while (true) {
    const auto* known =
        std::find_if(std::begin(kCompare), std::end(kCompare), [&](const auto& op) { return stream_.at_op(op.first); });
    if (known != std::end(kCompare)) {
      stream_.next();
      node->ops.push_back(known->second);
    } else if (stream_.skip_name("in")) {
      node->ops.push_back(Operator::kIn);
    } else if (stream_.at_name("not") && stream_.ahead().type == TokenType::kName && stream_.ahead().text == "in") {
      stream_.next();
      stream_.next();
      node->ops.push_back(Operator::kNotIn);
    } else {
      break;
    }
    node->items.push_back(TRY(math1()));
  }
  if (node->ops.empty()) return std::move(node->items[0]);
  return finish(std::move(node));
}

Result<ExprPtr> ExprParser::math1() {
  ExprPtr left = TRY(concat());
  while (stream_.at_op("+") || stream_.at_op("-")) {
    const Token& token = stream_.next();
    const Operator op = token.text == "+" ? Operator::kAdd : Operator::kSub;
    const Place place = token.place;
    ExprPtr right = TRY(concat());
    left = TRY(make_binary(op, std::move(left), std::move(right), place));
  }
  return left;
}

Result<ExprPtr> ExprParser::concat() {
  const Place place = stream_.place();
  ExprPtr node = make(ExprKind::kConcat, place, TRY(math2()));
  while (stream_.skip_op("~")) node->items.push_back(TRY(math2()));
  if (node->items.size() == 1) return std::move(node->items[0]);
  return finish(std::move(node));
}

Result<ExprPtr> ExprParser::math2() {
  static constexpr std::pair<std::string_view, Operator> kOps[] = {
      {"*", Operator::kMul}, {"/", Operator::kDiv}, {"//", Operator::kFloorDiv}, {"%", Operator::kMod}};
  ExprPtr left = TRY(pow());
  while (true) {
    const auto* known =
        std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& op) { return stream_.at_op(op.first); });
    if (known == std::end(kOps)) return left;
    const Place place = stream_.next().place;
    ExprPtr right = TRY(pow());
    left = TRY(make_binary(known->second, std::move(left), std::move(right), place));
  }
}

Result<ExprPtr> ExprParser::pow() {
  ExprPtr left = TRY(unary(true));
  while (stream_.at_op("**")) {
    const Place place = stream_.next().place;
    ExprPtr right = TRY(unary(true));
    left = TRY(make_binary(Operator::kPow, std::move(left), std::move(right), place));
  }
  return left;
}

Result<ExprPtr> ExprParser::unary(bool with_filter) {
  const DepthGuard guard(*this);
  if (guard.too_deep()) return stream_.fail("an expression is nested too deeply");
  const Place place = stream_.place();
  ExprPtr node;
  if (stream_.at_op("-") || stream_.at_op("+")) {
    const ExprKind kind = stream_.next().text == "-" ? ExprKind::kNegate : ExprKind::kPositive;
    ExprPtr operand = TRY(unary(false));
    node = TRY(finish(make(kind, place, std::move(operand))));
  } else {
    node = TRY(primary());
  }
  node = TRY(postfix(std::move(node)));
  return with_filter ? filter_expr(std::move(node)) : Result<ExprPtr>(std::move(node));
}

Result<ExprPtr> ExprParser::primary() {
  const Token token = stream_.current();
  switch (token.type) {
    case TokenType::kName: {
      stream_.next();
      if (token.text == "true" || token.text == "True") return constant(true, token.place);
      if (token.text == "false" || token.text == "False") return constant(false, token.place);
      if (token.text == "none" || token.text == "None") return constant(None{}, token.place);
      ExprPtr node = make(ExprKind::kName, token.place);
      node->text = token.text;
      node->symbol = intern(token.text);
      uses_.resize(symbols_.size());
      ++uses_[static_cast<size_t>(node->symbol)];
      return node;
    }
    case TokenType::kString: {  // neighbours are one string
      std::string text;
      while (stream_.at(TokenType::kString)) text += stream_.next().text;
      return constant(std::move(text), token.place);
    }
    case TokenType::kInteger:
      stream_.next();
      return constant(TRY(integer_value(token.text, stream_)), token.place);
    case TokenType::kFloat:
      stream_.next();
      return constant(std::strtod(token.text.c_str(), nullptr), token.place);
    default:
      break;
  }
  if (stream_.skip_op("(")) {
    if (stream_.skip_op(")")) return make(ExprKind::kTuple, token.place);
    ExprPtr node = TRY(tuple());
    TRY(stream_.expect_op(")"));
    return node;
  }
  if (stream_.at_op("[")) return list();
  if (stream_.at_op("{")) return dict();
  return stream_.fail("unexpected " + quote(token.text.empty() ? "end of tag" : token.text));
}

Result<ExprPtr> ExprParser::list() {
  ExprPtr node = make(ExprKind::kList, stream_.next().place);
  while (!stream_.at_op("]")) {
    if (!node->items.empty()) TRY(stream_.expect_op(","));
    if (stream_.at_op("]")) break;
    node->items.push_back(TRY(expression()));
  }
  TRY(stream_.expect_op("]"));
  return finish(std::move(node));
}

Result<ExprPtr> ExprParser::dict() {
  ExprPtr node = make(ExprKind::kDict, stream_.next().place);
  while (!stream_.at_op("}")) {
    if (!node->items.empty()) TRY(stream_.expect_op(","));
    if (stream_.at_op("}")) break;
    node->items.push_back(TRY(expression()));
    TRY(stream_.expect_op(":"));
    node->items.push_back(TRY(expression()));
  }
  TRY(stream_.expect_op("}"));
  return finish(std::move(node));
}

bool ExprParser::at_tuple_end(std::string_view end_name) const {
  return stream_.at(TokenType::kVariableEnd) || stream_.at(TokenType::kBlockEnd) || stream_.at_op(")") ||
         (!end_name.empty() && stream_.at_name(end_name));
}

Result<ExprPtr> ExprParser::tuple(bool with_condition, std::string_view end_name) {
  ExprPtr node = make(ExprKind::kTuple, stream_.place());
  bool is_tuple = false;
  while (true) {
    if (!node->items.empty()) TRY(stream_.expect_op(","));
    if (at_tuple_end(end_name)) break;
    node->items.push_back(TRY(expression(with_condition)));
    if (!stream_.at_op(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return finish(std::move(node));
  if (node->items.empty())
    return stream_.fail("Expected an expression, got " +
                        quote(stream_.at(TokenType::kOperator) ? stream_.current().text : "end of tag"));
  return std::move(node->items[0]);
}

}  // namespace mortise::jinja
