// The parser's position among the tokens, and which tokens it may skip.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "lexer.h"
#include "scan.h"

namespace mortise::math {

inline constexpr int kMaxDepth = 240;  // about 100 pairs of brackets

// The character of a relation in Node::text.
inline char relation_of(const Token& t) {
  if (t.kind == TokenKind::kSign) {
    if (t.text == "=" || t.text == "<" || t.text == ">") return t.text[0];
    if (t.text == "<=") return 'l';
    if (t.text == ">=") return 'g';
    if (t.text == "!=") return 'n';
  }
  if (t.kind != TokenKind::kCommand) return 0;
  if (t.text == "le") return 'l';
  if (t.text == "ge") return 'g';
  if (t.text == "ne") return 'n';
  if (t.text == "in") return 'i';
  if (t.text == "approx" || t.text == "equiv") return '~';
  return 0;
}

class Cursor {
 protected:
  explicit Cursor(std::string_view text) : tokens_(tokens(text)) {}

  [[nodiscard]] const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(i_ + ahead, tokens_.size() - 1)];
  }
  [[nodiscard]] bool is_sign(std::string_view text) const {
    return peek().kind == TokenKind::kSign && peek().text == text;
  }
  [[nodiscard]] bool is_command(std::string_view name) const {
    return peek().kind == TokenKind::kCommand && peek().text == name;
  }
  bool take_sign(std::string_view text) {
    if (!is_sign(text)) return false;
    ++i_;
    return true;
  }
  bool take_command(std::string_view name) {
    if (!is_command(name)) return false;
    ++i_;
    return true;
  }
  void want_sign(std::string_view text) {
    if (!take_sign(text)) throw Unreadable("no " + std::string(text));
  }

  // One level of nesting, as long as it lives.
  struct Nested {
    explicit Nested(int& depth) : depth_(depth) {
      if (++depth_ > kMaxDepth) throw Unreadable("nested too deep");
    }
    ~Nested() { --depth_; }
    int& depth_;
  };

  void skip_words() {
    while (peek().kind == TokenKind::kWord) ++i_;
  }

  // '+', '-', 'p' or 'm' if a sign of a sum is here.
  [[nodiscard]] char sign_here() const {
    if (is_sign("+")) return '+';
    if (is_sign("-")) return '-';
    if (is_command("pm")) return 'p';
    return is_command("mp") ? 'm' : 0;
  }

  // "\text{Area} = 5"
  [[nodiscard]] bool is_named_by_words() const {
    std::size_t ahead = 0;
    while (peek(ahead).kind == TokenKind::kWord) ++ahead;
    return ahead > 0 && peek(ahead).kind == TokenKind::kSign && peek(ahead).text == "=";
  }

  // "21^{st}", "5^{\text{th}}"
  bool skip_ordinal() {
    if (!is_sign("{")) return false;
    std::string letters;
    std::size_t ahead = 1;
    for (; peek(ahead).kind == TokenKind::kLetter || peek(ahead).kind == TokenKind::kWord; ++ahead)
      letters += peek(ahead).text;
    if (!is_one_of(letters, {"st", "nd", "rd", "th"}) || peek(ahead).text != "}") return false;
    i_ += ahead + 1;
    return true;
  }

  // "x :" and "x \in \reals |" of a set's condition.
  bool skip_such_that() {
    std::size_t ahead = peek().kind == TokenKind::kLetter ? 1 : 0;
    if (ahead == 1 && peek(1).text == "in" && peek(2).text == "reals") ahead = 3;
    if (ahead == 0 || (peek(ahead).text != ":" && peek(ahead).text != "|")) return false;
    i_ += ahead + 1;
    return true;
  }

  // The "(mod" of "2 (mod 5)"
  [[nodiscard]] bool is_bracketed_modulus() const {
    return is_sign("(") && peek(1).kind == TokenKind::kCommand && peek(1).text == "mod";
  }

  std::vector<Token> tokens_;
  std::size_t i_ = 0;
  int depth_ = 0;
};

}  // namespace mortise::math
