// Tokens of a shell script: words as runs of literal text and expansions, operators, ends of lines. Private to this
// room. Threading: one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

struct ShellPiece {
  enum class Kind { kText, kVariable, kArithmetic, kCommand };
  Kind kind = Kind::kText;
  std::string text;  // literal; or the text between the brackets: NAME, NAME:-text, 1 + 2, the command
  bool quoted = false;
};

struct ShellToken {
  enum class Kind { kWord, kArray, kOperator, kNewline, kEnd };
  Kind kind = Kind::kEnd;
  std::vector<ShellPiece> pieces;              // parts of a word; for an array the text before its '('
  std::vector<std::vector<ShellPiece>> items;  // items of an array
  std::string op;                              // ";", "&&", "|", "(", ...
  int64_t line = 1;
};

class ShellLexer {
 public:
  explicit ShellLexer(std::string_view text, int64_t line = 1) : text_(text), line_(line) {}

  // kEnd for ever at the end. Redirections and here documents are left out. An error names only the line.
  Result<ShellToken> next();
  [[nodiscard]] int64_t line() const { return line_; }

  // A text as if between double quotes, but for quotes of its own, which are taken off: the text of ${NAME:-text}.
  static Result<std::vector<ShellPiece>> pieces_of(std::string_view text);

 private:
  [[nodiscard]] bool at_end() const { return at_ >= text_.size(); }
  [[nodiscard]] char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  char take();
  void skip_blanks();
  [[nodiscard]] bool is_redirection() const;
  Result<> skip_redirection();
  void skip_here_document(const std::string& end);
  Result<ShellToken> read_operator();
  Result<ShellToken> read_word();
  Result<> read_array(ShellToken& token);
  Result<> read_quoted(std::vector<ShellPiece>& pieces);
  Result<> read_single_quoted(std::vector<ShellPiece>& pieces);
  Result<> read_expansion(std::vector<ShellPiece>& pieces, bool quoted);
  Result<std::string> read_bracketed(char open, char close);
  Error not_closed(std::string_view what) const;

  std::string_view text_;
  size_t at_ = 0;
  int64_t line_;
  std::vector<std::string> here_ends_;  // here documents that begin behind this line
};

}  // namespace mortise
