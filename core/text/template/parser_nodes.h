// What the two files of the expression parser share: making nodes, and the guard against deep recursion.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "foundation/base/text.h"
#include "text/template/parser.h"

namespace mortise::jinja {

inline constexpr int kMaxNesting = 200;  // parentheses in parentheses count twice

inline ExprPtr make(ExprKind kind, Place place) {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->place = place;
  return node;
}

inline ExprPtr make(ExprKind kind, Place place, ExprPtr only) {
  ExprPtr node = make(kind, place);
  node->items.push_back(std::move(only));
  return node;
}

inline ExprPtr constant(Value value, Place place) {
  ExprPtr node = make(ExprKind::kConst, place);
  node->value = std::move(value);
  return node;
}

inline Result<Value> integer_value(std::string text, const TokenStream& stream) {
  unsigned base = 10;
  if (text.size() > 2 && text[0] == '0') {
    const char marker = static_cast<char>(text[1] | 0x20);
    base = marker == 'x' ? 16 : marker == 'o' ? 8 : marker == 'b' ? 2 : 10;
    if (base != 10) text = text.substr(2);
  }
  Int value = 0;
  for (const char c : text) {
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    if (__builtin_mul_overflow(value, static_cast<Int>(base), &value) ||
        __builtin_add_overflow(value, Int{digit}, &value)) {
      return stream.fail("the integer " + quote(text) + " is too large");
    }
  }
  return Value(value);
}

// Counts open recursion of the parser itself.
class DepthGuard {
 public:
  explicit DepthGuard(ExprParser& parser) : parser_(parser) { ++parser_.nesting_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;
  ~DepthGuard() { --parser_.nesting_; }
  [[nodiscard]] bool too_deep() const { return parser_.nesting_ > kMaxNesting; }

 private:
  ExprParser& parser_;
};

}  // namespace mortise::jinja
