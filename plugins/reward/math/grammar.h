// The grammar: a recursive-descent parser from tokens to a tree. Private to this folder; parser.h is its door.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cursor.h"
#include "parser.h"

namespace mortise::math {

class Parser : Cursor {
 public:
  explicit Parser(std::string_view text) : Cursor(text) {}
  NodePtr run();

 private:
  NodePtr words_alone();

  // --- from the loosest to the tightest
  // "a \over b" and "a \choose b" take all of their group.
  NodePtr over_list();
  NodePtr list();
  [[nodiscard]] bool at_end() const;
  NodePtr name_in_words();
  NodePtr relation();
  NodePtr set_expression();
  NodePtr ratio();
  NodePtr sum();
  // "7 \bmod 5" is a number, "7 \pmod{5}" and "7 (mod 5)" are all that leave the same.
  NodePtr modulo(NodePtr node);
  NodePtr product();
  // "km/h" behind a number, "m/s" and "m/s^2" at the end of all.
  bool skip_unit_quotient();
  // "3\frac{1}{2}" and "3 1/2" are sums.
  void implicit_factor(std::vector<NodePtr>& factors);
  [[nodiscard]] bool starts_factor() const;
  NodePtr signed_power();
  NodePtr power();
  // "cm", "cm^2", "percent", "million people".
  void unit(NodePtr& node);
  NodePtr raised(NodePtr base);
  NodePtr exponent();

  // --- atoms
  NodePtr primary();
  NodePtr number();
  // What TeX takes as an argument without braces: one letter of "x2".
  NodePtr one_token() { return peek().kind == TokenKind::kLetter ? letter() : primary(); }
  NodePtr letter();
  // With subscript and primes.
  NodePtr symbol(std::string name);
  // The tokens of the next argument as text.
  std::string raw_argument();
  NodePtr command();
  // A group, or one token: \frac12.
  NodePtr argument();
  NodePtr two_arguments(Kind kind);
  NodePtr root();
  NodePtr between(std::string_view closing, Kind kind);
  NodePtr function(const std::string& name);
  NodePtr of_several(const std::string& name);
  static bool is_minus_one(const Node& n);
  // "\sin 2x": factors up to the next sign or function; a constant over a number too, as in "\sin \pi/6".
  NodePtr bare_argument();
  NodePtr group();
  NodePtr tuple();
  NodePtr set();
  NodePtr bars();
  NodePtr matrix();

  int bars_ = 0;  // open |, in which the next one closes
  bool in_determinant_ = false;
};

}  // namespace mortise::math
