// Template text to a tree. The grammar is Jinja 3.1's with the loopcontrols extension and {% generation %}.
// Not supported (an error names the tag): include, import, from, extends, block, autoescape.
// Cost: linear; nesting is limited. Thread rule: pure function.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/template/ast.h"
#include "text/template/lexer.h"

namespace mortise::jinja {

Result<std::shared_ptr<const Template>> parse_template(std::string_view source, std::string_view name);

// One token at a time, with the errors of a parser.
class TokenStream {
 public:
  TokenStream(std::vector<Token> tokens, std::string name) : tokens_(std::move(tokens)), name_(std::move(name)) {}

  [[nodiscard]] const Token& current() const { return tokens_[pos_]; }
  [[nodiscard]] const Token& ahead() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  [[nodiscard]] Place place() const { return current().place; }
  const Token& next() { return tokens_[pos_ + 1 < tokens_.size() ? pos_++ : pos_]; }
  [[nodiscard]] bool at(TokenType type) const { return current().type == type; }
  [[nodiscard]] bool at_op(std::string_view text) const { return at(TokenType::kOperator) && current().text == text; }
  [[nodiscard]] bool at_name(std::string_view text) const { return at(TokenType::kName) && current().text == text; }
  bool skip_op(std::string_view text) { return at_op(text) && (next(), true); }
  bool skip_name(std::string_view text) { return at_name(text) && (next(), true); }
  Result<> expect_op(std::string_view text);
  Result<> expect_name(std::string_view text);
  Result<> expect(TokenType type);
  Result<std::string> name();  // any name
  [[nodiscard]] Error fail(const std::string& what) const { return fail_at(what, place()); }
  [[nodiscard]] Error fail_at(const std::string& what, Place place) const {
    return Error{ErrorKind::kData, what, place_text(name_, place), ""};
  }
  [[nodiscard]] Error unexpected(std::string_view wanted) const;

 private:
  std::vector<Token> tokens_;
  std::string name_;
  size_t pos_ = 0;
};

// Expressions; statements are in parser.cpp.
class ExprParser {
 public:
  ExprParser(TokenStream& stream, std::vector<std::string>& symbols) : stream_(stream), symbols_(symbols) {}

  Result<ExprPtr> expression(bool with_condition = true);
  // Expressions with commas between them make a tuple; `end_name`: a word that ends it.
  Result<ExprPtr> tuple(bool with_condition = true, std::string_view end_name = "");
  // The target of a loop or set.
  Result<ExprPtr> target(bool with_tuple, bool with_namespace, std::string_view end_name = "");
  // "|filter|filter", or with `inline_start` "filter|filter", applied to `input` (null: a block's text).
  Result<ExprPtr> filters(ExprPtr input, bool inline_start);
  Symbol intern(const std::string& name);
  // How often a name has been read so far.
  [[nodiscard]] size_t uses_of(Symbol symbol) const {
    return static_cast<size_t>(symbol) < uses_.size() ? uses_[static_cast<size_t>(symbol)] : 0;
  }

  // Inside an `if` or a conditional expression, an unknown filter or test is an error only when it runs. Elsewhere it
  // is kept here, for the parser to fail with.
  int soft = 0;
  std::optional<Error> unknown;

 private:
  friend class DepthGuard;
  Result<ExprPtr> condition_expr();
  Result<ExprPtr> or_expr();
  Result<ExprPtr> and_expr();
  Result<ExprPtr> not_expr();
  Result<ExprPtr> compare();
  Result<ExprPtr> math1();
  Result<ExprPtr> concat();
  Result<ExprPtr> math2();
  Result<ExprPtr> pow();
  Result<ExprPtr> unary(bool with_filter);
  Result<ExprPtr> primary();
  Result<ExprPtr> list();
  Result<ExprPtr> dict();
  Result<ExprPtr> postfix(ExprPtr node);
  Result<ExprPtr> filter_expr(ExprPtr node);
  Result<ExprPtr> test(ExprPtr node);
  Result<ExprPtr> subscript(ExprPtr node);
  Result<ExprPtr> subscript_part(ExprPtr node);
  Result<ExprPtr> call(ExprPtr node);
  Result<std::unique_ptr<ArgList>> call_args();
  Result<ExprPtr> target_primary(bool with_namespace);
  Result<ExprPtr> make_binary(Operator op, ExprPtr left, ExprPtr right, Place place);
  // Adds the children's depth up; fails where the tree gets too deep.
  Result<ExprPtr> finish(ExprPtr node);
  [[nodiscard]] bool at_tuple_end(std::string_view end_name) const;
  void note_unknown(const std::string& what, Place place) {
    if (soft == 0 && !unknown) unknown = stream_.fail_at(what, place);
  }

  TokenStream& stream_;
  std::vector<std::string>& symbols_;
  std::unordered_map<std::string, Symbol> symbol_of_;
  std::vector<size_t> uses_;  // by symbol
  int nesting_ = 0;
};

}  // namespace mortise::jinja
