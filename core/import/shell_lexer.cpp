// Splits the text of a script into tokens.
#include "import/shell_lexer.h"

#include <cctype>

#include "foundation/base/text.h"

namespace mortise {

namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_operator(char c) { return std::string_view(";&|()<>").find(c) != std::string_view::npos && c != '\0'; }

void add_text(std::vector<ShellPiece>& pieces, std::string_view text, bool quoted) {
  if (pieces.empty() || pieces.back().kind != ShellPiece::Kind::kText || pieces.back().quoted != quoted)
    pieces.push_back({ShellPiece::Kind::kText, "", quoted});
  pieces.back().text += text;
}

// NAME= or NAME+= so far: the '(' behind it begins an array.
bool begins_array(const std::vector<ShellPiece>& pieces) {
  if (pieces.size() != 1 || pieces[0].kind != ShellPiece::Kind::kText || pieces[0].quoted) return false;
  std::string_view name = pieces[0].text;
  if (!name.ends_with('=')) return false;
  name.remove_suffix(name.ends_with("+=") ? 2 : 1);
  if (name.empty() || is_digit(name.front())) return false;
  for (const char c : name) {
    if (!is_name_char(c)) return false;
  }
  return true;
}

}  // namespace

char ShellLexer::take() {
  const char c = text_[at_++];
  if (c == '\n') ++line_;
  return c;
}

Error ShellLexer::not_closed(std::string_view what) const {
  return {ErrorKind::kConfig, std::string(what) + " is not closed", std::to_string(line_), "close it"};
}

void ShellLexer::skip_blanks() {
  while (!at_end()) {
    if (is_blank(peek())) {
      ++at_;
    } else if (peek() == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'))) {
      at_ += peek(1) == '\n' ? 2 : 3;
      ++line_;
    } else {
      return;
    }
  }
}

// "<", ">", "2>", "&>".
bool ShellLexer::is_redirection() const {
  size_t ahead = 0;
  while (is_digit(peek(ahead))) ++ahead;
  if (ahead == 0 && peek() == '&') return peek(1) == '>';
  return peek(ahead) == '<' || peek(ahead) == '>';
}

Result<> ShellLexer::skip_redirection() {
  while (is_digit(peek()) || peek() == '&') ++at_;
  std::string op;
  while (peek() == '<' || peek() == '>' || peek() == '&' || (peek() == '|' && op == ">")) op += take();
  if (op == "<<" && peek() == '-') ++at_;
  skip_blanks();
  if (at_end() || peek() == '\n') return {};
  const ShellToken target = TRY(read_word());
  if (op != "<<") return {};
  std::string end;
  for (const ShellPiece& piece : target.pieces) end += piece.text;
  here_ends_.push_back(end);
  return {};
}

void ShellLexer::skip_here_document(const std::string& end) {
  while (!at_end()) {
    const size_t stop = std::min(text_.find('\n', at_), text_.size());
    const std::string_view line = trim(text_.substr(at_, stop - at_));
    at_ = std::min(stop + 1, text_.size());
    ++line_;
    if (line == end) return;
  }
}

Result<ShellToken> ShellLexer::next() {
  while (true) {
    skip_blanks();
    if (peek() == '#') {
      while (!at_end() && peek() != '\n') ++at_;
    } else if (is_redirection()) {
      TRY(skip_redirection());
    } else {
      break;
    }
  }
  ShellToken token;
  token.line = line_;
  if (at_end()) return token;
  if (peek() == '\n') {
    take();
    token.kind = ShellToken::Kind::kNewline;
    for (const std::string& end : here_ends_) skip_here_document(end);
    here_ends_.clear();
    return token;
  }
  if (is_operator(peek())) return read_operator();
  return read_word();
}

Result<ShellToken> ShellLexer::read_operator() {
  ShellToken token;
  token.kind = ShellToken::Kind::kOperator;
  token.line = line_;
  token.op += take();
  const bool doubles = token.op == ";" || token.op == "&" || token.op == "|";
  if (doubles && (peek() == token.op[0] || (token.op == "|" && peek() == '&'))) token.op += take();
  return token;
}

Result<ShellToken> ShellLexer::read_word() {
  ShellToken token;
  token.kind = ShellToken::Kind::kWord;
  token.line = line_;
  while (!at_end()) {
    const char c = peek();
    if (c == '(' && begins_array(token.pieces)) {
      TRY(read_array(token));
      return token;
    }
    if (is_blank(c) || c == '\n' || is_operator(c)) break;
    if (c == '\'') {
      TRY(read_single_quoted(token.pieces));
    } else if (c == '"') {
      TRY(read_quoted(token.pieces));
    } else if (c == '$' || c == '`') {
      TRY(read_expansion(token.pieces, false));
    } else if (c == '\\') {
      if (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n')) break;  // the line continues: skip_blanks()
      ++at_;
      if (!at_end()) add_text(token.pieces, text_.substr(at_++, 1), true);
    } else {
      add_text(token.pieces, text_.substr(at_++, 1), false);
    }
  }
  return token;
}

Result<> ShellLexer::read_array(ShellToken& token) {
  token.kind = ShellToken::Kind::kArray;
  take();
  while (true) {
    skip_blanks();
    if (at_end()) return not_closed("an array");
    if (peek() == ')') {
      take();
      return {};
    }
    if (peek() == '\n') {
      take();
    } else if (peek() == '#') {
      while (!at_end() && peek() != '\n') ++at_;
    } else if (is_operator(peek())) {
      take();  // no part of an array that a shell would take
    } else {
      token.items.push_back(TRY(read_word()).pieces);
    }
  }
}

Result<> ShellLexer::read_single_quoted(std::vector<ShellPiece>& pieces) {
  const size_t end = text_.find('\'', at_ + 1);
  if (end == std::string_view::npos) return not_closed("a quote");
  add_text(pieces, text_.substr(at_ + 1, end - at_ - 1), true);
  while (at_ <= end) take();
  return {};
}

Result<> ShellLexer::read_quoted(std::vector<ShellPiece>& pieces) {
  const Error open = not_closed("a quote");
  take();
  add_text(pieces, "", true);  // "" is a word
  while (!at_end()) {
    const char c = peek();
    if (c == '"') {
      take();
      return {};
    }
    if (c == '\\' && std::string_view("$`\"\\\n").find(peek(1)) != std::string_view::npos && at_ + 1 < text_.size()) {
      ++at_;
      const char escaped = take();
      if (escaped != '\n') add_text(pieces, std::string_view(&escaped, 1), true);
    } else if (c == '$' || c == '`') {
      TRY(read_expansion(pieces, true));
    } else {
      const char plain = take();
      add_text(pieces, std::string_view(&plain, 1), true);
    }
  }
  return open;
}

// At '$' or '`'.
Result<> ShellLexer::read_expansion(std::vector<ShellPiece>& pieces, bool quoted) {
  using Kind = ShellPiece::Kind;
  if (take() == '`') {
    const size_t end = text_.find('`', at_);
    if (end == std::string_view::npos) return not_closed("a quote");
    pieces.push_back({Kind::kCommand, std::string(text_.substr(at_, end - at_)), quoted});
    while (at_ <= end) take();
    return {};
  }
  if (peek() == '{') {
    std::string inside = TRY(read_bracketed('{', '}'));
    pieces.push_back({Kind::kVariable, std::move(inside), quoted});
  } else if (peek() == '(') {
    std::string inside = TRY(read_bracketed('(', ')'));
    const bool arithmetic = inside.starts_with('(') && inside.ends_with(')');
    if (arithmetic) inside = inside.substr(1, inside.size() - 2);
    pieces.push_back({arithmetic ? Kind::kArithmetic : Kind::kCommand, std::move(inside), quoted});
  } else if (is_name_char(peek()) && !is_digit(peek())) {
    std::string name;
    while (is_name_char(peek())) name += take();
    pieces.push_back({Kind::kVariable, std::move(name), quoted});
  } else if (!at_end() && (is_digit(peek()) || std::string_view("@*#?$!-").find(peek()) != std::string_view::npos)) {
    pieces.push_back({Kind::kVariable, std::string(1, take()), quoted});
  } else {
    add_text(pieces, "$", quoted);
  }
  return {};
}

// The text between the current bracket and its end; quotes hide brackets.
Result<std::string> ShellLexer::read_bracketed(char open, char close) {
  const Error error = not_closed("a bracket");
  const size_t begin = at_ + 1;
  int depth = 0;
  char quote_mark = 0;
  while (!at_end()) {
    const char c = take();
    if (quote_mark != 0) {
      if (c == quote_mark) quote_mark = 0;
    } else if (c == '\'' || c == '"') {
      quote_mark = c;
    } else if (c == '\\' && !at_end()) {
      take();
    } else if (c == open) {
      ++depth;
    } else if (c == close && --depth == 0) {
      return std::string(text_.substr(begin, at_ - begin - 1));
    }
  }
  return error;
}

Result<std::vector<ShellPiece>> ShellLexer::pieces_of(std::string_view text) {
  ShellLexer lexer(text);
  std::vector<ShellPiece> pieces;
  while (!lexer.at_end()) {
    const char c = lexer.peek();
    if (c == '\'') {
      TRY(lexer.read_single_quoted(pieces));
    } else if (c == '"') {
      TRY(lexer.read_quoted(pieces));
    } else if (c == '$' || c == '`') {
      TRY(lexer.read_expansion(pieces, false));
    } else {
      const char plain = lexer.take();
      add_text(pieces, std::string_view(&plain, 1), false);
    }
  }
  return pieces;
}

}  // namespace mortise
