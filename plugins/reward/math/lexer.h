// Tokens of a normalised answer.
#pragma once

#include <gmpxx.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace mortise::math {

// This is no expression that the parser knows.
struct Unreadable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class TokenKind {
  kNumber,   // number, text: as written
  kLetter,   // text: one letter
  kCommand,  // text: name without the backslash; a function, "pi", "infty" also where written without one
  kWord,     // text, in lower case
  kSign,     // text: one of + - * / ^ _ ! % ( ) [ ] { } | , ; : = < > & ' or \{ \} \\ <= >= !=
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  mpq_class number;
  bool decimal = false;
  bool after_space = false;
};

// Throws Unreadable. Ends with a kEnd token.
std::vector<Token> tokens(std::string_view normalised);

}  // namespace mortise::math
