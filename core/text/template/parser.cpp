// Statements. See parser.h.
#include "text/template/parser.h"

#include <fmt/core.h>
#include <algorithm>
#include <initializer_list>

#include "foundation/base/text.h"

namespace mortise::jinja {
namespace {

constexpr int kMaxBlockNesting = 60;
constexpr size_t kMaxSourceBytes = size_t{256} << 10;  // the tree takes up to 150 times as many

std::string token_name(const Token& token) {
  switch (token.type) {
    case TokenType::kData:
      return "template data";
    case TokenType::kBlockBegin:
      return "begin of statement block";
    case TokenType::kBlockEnd:
      return "end of statement block";
    case TokenType::kVariableBegin:
      return "begin of print statement";
    case TokenType::kVariableEnd:
      return "end of print statement";
    case TokenType::kEnd:
      return "end of template";
    default:
      return token.text;
  }
}

class Parser {
 public:
  Parser(std::vector<Token> tokens, std::string name, size_t source_bytes)
      : stream_(std::move(tokens), name),
        template_(std::make_shared<Template>()),
        expr_(stream_, template_->symbols.names) {
    template_->name = std::move(name);
    template_->source_bytes = source_bytes;
    template_->symbols.loop = expr_.intern("loop");
    template_->symbols.caller = expr_.intern("caller");
    template_->symbols.varargs = expr_.intern("varargs");
    template_->symbols.kwargs = expr_.intern("kwargs");
  }

  Result<std::shared_ptr<const Template>> run() {
    template_->body = TRY(body({}));
    return std::shared_ptr<const Template>(template_);
  }

 private:
  using Words = std::initializer_list<std::string_view>;
  using Made = Result<std::unique_ptr<Stmt>>;

  std::unique_ptr<Stmt> make(StmtKind kind, Place place) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->place = place;
    return stmt;
  }

  // Statements up to one of the words (left at the word); without words, up to the end of the template.
  Result<Body> body(Words ends) {
    Body out;
    if (open_.size() > kMaxBlockNesting) return stream_.fail("blocks are nested too deeply");
    while (!stream_.at(TokenType::kEnd)) {
      const Token token = stream_.next();
      if (token.type == TokenType::kData) {
        auto text = make(StmtKind::kText, token.place);
        text->text = token.text;
        out.push_back(std::move(text));
      } else if (token.type == TokenType::kVariableBegin) {
        auto print = make(StmtKind::kPrint, token.place);
        print->expr = TRY(expr_.tuple());
        TRY(stream_.expect(TokenType::kVariableEnd));
        out.push_back(std::move(print));
      } else if (token.type == TokenType::kBlockBegin) {
        if (!stream_.at(TokenType::kName)) return stream_.fail("tag name expected");
        if (std::find(ends.begin(), ends.end(), stream_.current().text) != ends.end()) return out;
        out.push_back(TRY(statement()));
        TRY(stream_.expect(TokenType::kBlockEnd));
      } else {
        return stream_.fail("internal parsing error");
      }
      if (expr_.unknown) return *expr_.unknown;
    }
    if (ends.size() == 0) return out;
    std::string wanted;
    for (const std::string_view word : ends) wanted += fmt::format("{}{}'", wanted.empty() ? "'" : " or '", word);
    return stream_.fail(fmt::format(
        "Unexpected end of template. Jinja was looking for the following tags: {}. The innermost block that needs "
        "to be closed is '{}'.",
        wanted, open_.back()));
  }

  // The rest of the opening tag, then statements up to one of the words.
  Result<Body> block(Words ends) {
    TRY(stream_.expect(TokenType::kBlockEnd));
    return body(ends);
  }

  Made statement() {
    const std::string tag = stream_.current().text;
    static constexpr std::pair<std::string_view, Made (Parser::*)()> kTags[] = {
        {"for", &Parser::for_stmt},        {"if", &Parser::if_stmt},
        {"set", &Parser::set_stmt},        {"macro", &Parser::macro_stmt},
        {"call", &Parser::call_stmt},      {"filter", &Parser::filter_stmt},
        {"with", &Parser::with_stmt},      {"break", &Parser::break_stmt},
        {"continue", &Parser::break_stmt}, {"generation", &Parser::generation_stmt},
        {"print", &Parser::print_stmt}};
    for (const auto& [name, parse] : kTags) {
      if (name != tag) continue;
      open_.push_back(tag);
      auto made = (this->*parse)();
      open_.pop_back();
      return made;
    }
    static constexpr std::string_view kKnown[] = {"include", "import", "from", "extends", "block", "autoescape"};
    if (std::find(std::begin(kKnown), std::end(kKnown), tag) != std::end(kKnown))
      return stream_.fail(fmt::format("the tag '{}' is not supported", tag));
    std::string what = fmt::format("Encountered unknown tag '{}'.", tag);
    if (!open_.empty()) what += fmt::format(" The innermost block that needs to be closed is '{}'.", open_.back());
    return stream_.fail(what);
  }

  Made for_stmt() {
    auto stmt = make(StmtKind::kFor, stream_.next().place);
    stmt->target = TRY(expr_.target(true, false, "in"));
    TRY(stream_.expect_name("in"));
    stmt->expr = TRY(expr_.tuple(false, "recursive"));
    if (stream_.skip_name("if")) stmt->condition = TRY(expr_.expression());
    stmt->recursive = stream_.skip_name("recursive");
    ++loops_;
    auto inner = block({"endfor", "else"});
    --loops_;
    stmt->body = TRY(std::move(inner));
    if (stream_.next().text == "else") {
      stmt->otherwise = TRY(block({"endfor"}));
      stream_.next();
    }
    return stmt;
  }

  Made if_stmt() {
    auto stmt = make(StmtKind::kIf, stream_.next().place);
    ++expr_.soft;
    auto parsed = [&]() -> Result<> {
      ExprPtr test = TRY(expr_.tuple(false));
      while (true) {
        stmt->branches.emplace_back(std::move(test), TRY(block({"elif", "else", "endif"})));
        const std::string word = stream_.next().text;
        if (word == "elif") {
          test = TRY(expr_.tuple(false));
          continue;
        }
        if (word == "else") {
          stmt->branches.emplace_back(nullptr, TRY(block({"endif"})));
          stream_.next();
        }
        return {};
      }
    }();
    --expr_.soft;
    TRY(std::move(parsed));
    return stmt;
  }

  Made set_stmt() {
    auto stmt = make(StmtKind::kSet, stream_.next().place);
    stmt->target = TRY(expr_.target(true, true));
    if (stream_.skip_op("=")) {
      stmt->expr = TRY(expr_.tuple());
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    stmt->expr = TRY(expr_.filters(nullptr, false));
    stmt->body = TRY(block({"endset"}));
    stream_.next();
    return stmt;
  }

  Result<> signature(Stmt& stmt) {
    TRY(stream_.expect_op("("));
    while (!stream_.at_op(")")) {
      if (!stmt.params.empty()) TRY(stream_.expect_op(","));
      Param param;
      param.name = TRY(stream_.name());
      param.symbol = expr_.intern(param.name);
      if (stream_.skip_op("=")) {
        param.fallback = TRY(expr_.expression());
      } else if (!stmt.params.empty() && stmt.params.back().fallback != nullptr) {
        return stream_.fail("non-default argument follows default argument");
      }
      stmt.params.push_back(std::move(param));
    }
    return stream_.expect_op(")");
  }

  Made macro_stmt() {
    auto stmt = make(StmtKind::kMacro, stream_.next().place);
    stmt->text = TRY(stream_.name());
    stmt->symbol = expr_.intern(stmt->text);
    TRY(signature(*stmt));
    TRY(closed_body(*stmt, "endmacro"));
    return stmt;
  }

  Made call_stmt() {
    auto stmt = make(StmtKind::kCallBlock, stream_.next().place);
    if (stream_.at_op("(")) TRY(signature(*stmt));
    stmt->expr = TRY(expr_.expression());
    if (stmt->expr->kind != ExprKind::kCall) return stream_.fail("expected call");
    TRY(closed_body(*stmt, "endcall"));
    return stmt;
  }

  Made filter_stmt() {
    auto stmt = make(StmtKind::kFilterBlock, stream_.next().place);
    stmt->expr = TRY(expr_.filters(nullptr, true));
    stmt->body = TRY(block({"endfilter"}));
    stream_.next();
    return stmt;
  }

  Made with_stmt() {
    auto stmt = make(StmtKind::kWith, stream_.next().place);
    while (!stream_.at(TokenType::kBlockEnd)) {
      if (!stmt->assignments.empty()) TRY(stream_.expect_op(","));
      ExprPtr target = TRY(expr_.target(true, false));
      TRY(stream_.expect_op("="));
      stmt->assignments.emplace_back(std::move(target), TRY(expr_.expression()));
    }
    stmt->body = TRY(block({"endwith"}));
    stream_.next();
    return stmt;
  }

  Made break_stmt() {
    const Token token = stream_.next();
    if (loops_ == 0) return stream_.fail_at(fmt::format("'{}' outside loop", token.text), token.place);
    return make(token.text == "break" ? StmtKind::kBreak : StmtKind::kContinue, token.place);
  }

  Made generation_stmt() {
    auto stmt = make(StmtKind::kGeneration, stream_.next().place);
    template_->has_generation = true;
    TRY(closed_body(*stmt, "endgeneration"));
    return stmt;
  }

  Made print_stmt() {
    auto stmt = make(StmtKind::kPrint, stream_.next().place);
    stmt->expr = TRY(expr_.tuple());
    return stmt;
  }

  // A body that is its own function: a break cannot leave it into a loop around it.
  Result<> closed_body(Stmt& stmt, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    const size_t num_varargs = expr_.uses_of(template_->symbols.varargs);
    const size_t num_callers = expr_.uses_of(template_->symbols.caller);
    const size_t num_kwargs = expr_.uses_of(template_->symbols.kwargs);
    auto inner = block({end});
    loops_ = loops;
    stmt.body = TRY(std::move(inner));
    stmt.uses_varargs = expr_.uses_of(template_->symbols.varargs) > num_varargs;
    stmt.uses_kwargs = expr_.uses_of(template_->symbols.kwargs) > num_kwargs;
    stmt.uses_caller = expr_.uses_of(template_->symbols.caller) > num_callers;
    stream_.next();
    return {};
  }

  TokenStream stream_;
  std::shared_ptr<Template> template_;
  ExprParser expr_;
  std::vector<std::string> open_;  // tags that are open
  int loops_ = 0;
};

}  // namespace

Error TokenStream::unexpected(std::string_view wanted) const {
  return fail(fmt::format("expected token '{}', got '{}'", wanted, token_name(current())));
}

Result<> TokenStream::expect_op(std::string_view text) {
  if (!skip_op(text)) return unexpected(text);
  return {};
}

Result<> TokenStream::expect_name(std::string_view text) {
  if (!skip_name(text)) return unexpected(text);
  return {};
}

Result<> TokenStream::expect(TokenType type) {
  if (!at(type)) return unexpected(token_name({type, "", {}}));
  next();
  return {};
}

Result<std::string> TokenStream::name() {
  if (!at(TokenType::kName)) return unexpected("name");
  return next().text;
}

Result<std::shared_ptr<const Template>> parse_template(std::string_view source, std::string_view name) {
  if (const auto bad = find_invalid_utf8(source)) {
    return Error{ErrorKind::kData, "the template is not UTF-8 at byte " + std::to_string(*bad), std::string(name), ""};
  }
  if (source.size() > kMaxSourceBytes) {
    return Error{ErrorKind::kData,
                 fmt::format("the template has {} bytes, at most {} are allowed", source.size(), kMaxSourceBytes),
                 std::string(name), "shorten the template"};
  }
  std::vector<Token> tokens = TRY(tokenize(source, name));
  return Parser(std::move(tokens), std::string(name), source.size()).run();
}

}  // namespace mortise::jinja
