// What follows an operand: subscripts, calls, filters, tests. Also the targets of assignments. See parser.h.
#include <fmt/core.h>
#include <algorithm>

#include "text/template/filters.h"
#include "text/template/parser_nodes.h"
#include "text/template/tests.h"

namespace mortise::jinja {

Result<ExprPtr> ExprParser::postfix(ExprPtr node) {
  while (true) {
    if (stream_.at_op(".") || stream_.at_op("[")) {
      node = TRY(subscript(std::move(node)));
    } else if (stream_.at_op("(")) {
      node = TRY(call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExprPtr> ExprParser::filter_expr(ExprPtr node) {
  while (true) {
    if (stream_.at_op("|")) {
      node = TRY(filters(std::move(node), false));
    } else if (stream_.at_name("is")) {
      node = TRY(test(std::move(node)));
    } else if (stream_.at_op("(")) {
      node = TRY(call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExprPtr> ExprParser::filters(ExprPtr input, bool inline_start) {
  while (stream_.at_op("|") || inline_start) {
    if (!inline_start) stream_.next();
    inline_start = false;
    ExprPtr node = make(ExprKind::kFilter, stream_.place());
    node->text = TRY(stream_.name());
    while (stream_.skip_op(".")) node->text += "." + TRY(stream_.name());
    if (find_filter(node->text) == nullptr) note_unknown(fmt::format("No filter named '{}'.", node->text), node->place);
    if (input != nullptr) node->items.push_back(std::move(input));
    node->args = stream_.at_op("(") ? TRY(call_args()) : std::make_unique<ArgList>();
    input = TRY(finish(std::move(node)));
  }
  return input;
}

Result<ExprPtr> ExprParser::test(ExprPtr node) {
  const Place place = stream_.next().place;
  const bool negated = stream_.skip_name("not");
  ExprPtr made = make(ExprKind::kTest, place, std::move(node));
  made->text = TRY(stream_.name());
  while (stream_.skip_op(".")) made->text += "." + TRY(stream_.name());
  if (find_test(made->text) == nullptr) note_unknown(fmt::format("No test named '{}'.", made->text), place);
  made->args = std::make_unique<ArgList>();
  const bool at_word =
      stream_.at(TokenType::kName) && !stream_.at_name("else") && !stream_.at_name("or") && !stream_.at_name("and");
  const bool at_value = stream_.at(TokenType::kString) || stream_.at(TokenType::kInteger) ||
                        stream_.at(TokenType::kFloat) || stream_.at_op("[") || stream_.at_op("{");
  if (stream_.at_op("(")) {
    made->args = TRY(call_args());
  } else if (at_word || at_value) {
    if (stream_.at_name("is")) return stream_.fail("You cannot chain multiple tests with is");
    ExprPtr argument = TRY(primary());
    made->args->positional.push_back(TRY(postfix(std::move(argument))));
  }
  made = TRY(finish(std::move(made)));
  return negated ? finish(make(ExprKind::kNot, place, std::move(made))) : Result<ExprPtr>(std::move(made));
}

Result<ExprPtr> ExprParser::subscript(ExprPtr node) {
  const Token& token = stream_.next();
  const Place place = token.place;
  if (token.text == ".") {
    const Token attribute = stream_.next();
    if (attribute.type == TokenType::kName) {
      ExprPtr made = make(ExprKind::kAttribute, place, std::move(node));
      made->text = attribute.text;
      return finish(std::move(made));
    }
    if (attribute.type != TokenType::kInteger) return stream_.fail_at("expected name or number", place);
    ExprPtr made = make(ExprKind::kItem, place, std::move(node));
    made->items.push_back(constant(TRY(integer_value(attribute.text, stream_)), place));
    return finish(std::move(made));
  }
  ExprPtr made = TRY(subscript_part(std::move(node)));
  if (stream_.at_op(",")) {  // a[1, 2] takes a tuple
    if (made->kind == ExprKind::kSlice) return stream_.fail("a slice cannot be part of a tuple");
    ExprPtr key = make(ExprKind::kTuple, place, std::move(made->items[1]));
    while (stream_.skip_op(",")) key->items.push_back(TRY(expression()));
    made->items[1] = TRY(finish(std::move(key)));
  }
  TRY(stream_.expect_op("]"));
  return finish(std::move(made));
}

Result<ExprPtr> ExprParser::subscript_part(ExprPtr node) {
  const Place place = stream_.place();
  ExprPtr first;
  if (!stream_.at_op(":")) {
    if (stream_.at_op("]")) return stream_.fail("Expected an expression, got ']'");
    first = TRY(expression());
  }
  ExprPtr made = make(stream_.at_op(":") ? ExprKind::kSlice : ExprKind::kItem, place, std::move(node));
  made->items.push_back(std::move(first));
  if (!stream_.skip_op(":")) return made;
  const auto at_end = [&] { return stream_.at_op("]") || stream_.at_op(",") || stream_.at_op(":"); };
  made->items.push_back(at_end() ? nullptr : TRY(expression()));
  made->items.push_back(nullptr);
  if (stream_.skip_op(":") && !at_end()) made->items[3] = TRY(expression());
  return made;
}

Result<ExprPtr> ExprParser::call(ExprPtr node) {
  const Place place = node->place;
  ExprPtr made = make(ExprKind::kCall, place, std::move(node));
  made->args = TRY(call_args());
  return finish(std::move(made));
}

Result<std::unique_ptr<ArgList>> ExprParser::call_args() {
  const Place place = stream_.place();
  TRY(stream_.expect_op("("));
  auto args = std::make_unique<ArgList>();
  bool need_comma = false;
  const auto invalid = [&] { return stream_.fail_at("invalid syntax for function call expression", place); };
  while (!stream_.at_op(")")) {
    if (need_comma) {
      TRY(stream_.expect_op(","));
      if (stream_.at_op(")")) break;
    }
    if (stream_.skip_op("*")) {
      if (args->star != nullptr || args->double_star != nullptr) return invalid();
      args->star = TRY(expression());
    } else if (stream_.skip_op("**")) {
      if (args->double_star != nullptr) return invalid();
      args->double_star = TRY(expression());
    } else if (stream_.at(TokenType::kName) && stream_.ahead().type == TokenType::kOperator &&
               stream_.ahead().text == "=") {
      if (args->double_star != nullptr) return invalid();
      const std::string key = stream_.next().text;
      stream_.next();
      args->keyword.emplace_back(key, TRY(expression()));
    } else {
      if (args->star != nullptr || args->double_star != nullptr || !args->keyword.empty()) return invalid();
      args->positional.push_back(TRY(expression()));
    }
    need_comma = true;
  }
  TRY(stream_.expect_op(")"));
  return args;
}

Result<ExprPtr> ExprParser::target_primary(bool with_namespace) {
  const DepthGuard guard(*this);
  if (guard.too_deep()) return stream_.fail("a target is nested too deeply");
  const Place place = stream_.place();
  if (stream_.skip_op("(")) {
    ExprPtr node = TRY(target(true, with_namespace));
    TRY(stream_.expect_op(")"));
    return node;
  }
  const std::string name = TRY(stream_.name());
  static constexpr std::string_view kReserved[] = {"true", "True", "false", "False", "none", "None"};
  if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved))
    return stream_.fail_at("can't assign to 'const'", place);
  ExprPtr node = make(ExprKind::kName, place);
  node->text = name;
  node->symbol = intern(name);
  if (with_namespace && stream_.skip_op(".")) {
    node->kind = ExprKind::kNamespaceRef;
    node->text = TRY(stream_.name());
  }
  return node;
}

Result<ExprPtr> ExprParser::target(bool with_tuple, bool with_namespace, std::string_view end_name) {
  ExprPtr first = TRY(target_primary(with_namespace));
  if (!with_tuple || !stream_.at_op(",")) return first;
  const Place place = first->place;
  ExprPtr node = make(ExprKind::kTuple, place, std::move(first));
  while (stream_.skip_op(",")) {
    if (at_tuple_end(end_name) || stream_.at_op("=")) break;
    node->items.push_back(TRY(target_primary(with_namespace)));
  }
  return finish(std::move(node));
}

}  // namespace mortise::jinja
