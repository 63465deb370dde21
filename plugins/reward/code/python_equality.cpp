// Finds the two sides of a statement `assert LEFT == RIGHT`, and gives up on all that is not plainly one.
#include <algorithm>
#include <string>
#include <utility>

#include "python_literal.h"
#include "python_text.h"

namespace mortise {
namespace {

// The end of a text literal that begins at `at`; npos if it has no end.
std::size_t end_of_text(std::string_view s, std::size_t at) {
  const char quote = s[at];
  const std::string end(s.substr(at, 3) == std::string(3, quote) ? 3 : 1, quote);
  for (at += end.size(); at < s.size(); ++at) {
    if (s[at] == '\\') {
      ++at;
    } else if (s.substr(at, end.size()) == end) {
      return at + end.size();
    }
  }
  return std::string_view::npos;
}

// The separators between the parts of a statement, at the outermost level; an error for unsupported syntax.
struct Outline {
  bool clear = true;
  std::size_t equals = std::string_view::npos;  // the only comparison
  std::size_t comma = std::string_view::npos;   // the first at the outermost level
  std::size_t end = 0;                          // a comment or the end
  bool enclosed = false;                        // one pair of parentheses around all
};

bool is_unclear_word(std::string_view word) {
  for (const std::string_view unclear :
       {"and", "or", "not", "if", "else", "lambda", "in", "is", "for", "await", "yield"})
    if (word == unclear) return true;
  return false;
}

Outline outline_of(std::string_view s) {
  Outline out;
  out.end = s.size();
  int depth = 0;
  const auto unclear = [&] {
    out.clear = false;
    return out;
  };
  for (std::size_t i = 0; i < s.size(); ++i) {
    const char c = s[i];
    if (c == '\'' || c == '"') {
      const std::size_t end = end_of_text(s, i);
      if (end == std::string_view::npos) return unclear();
      i = end - 1;
    } else if (is_word(c)) {
      std::size_t end = i;
      while (end < s.size() && is_word(s[end])) ++end;
      if (is_unclear_word(s.substr(i, end - i))) return unclear();
      i = end - 1;
    } else if (c == '(' || c == '[' || c == '{') {
      if (i == 0 && c == '(') out.enclosed = true;
      ++depth;
    } else if (c == ')' || c == ']' || c == '}') {
      if (--depth < 0) return unclear();
      if (depth == 0 && !trimmed(s.substr(i + 1)).empty()) out.enclosed = false;
    } else if (c == '#') {
      if (depth != 0) return unclear();
      const std::size_t line = s.find('\n', i);
      if (line != std::string_view::npos && !trimmed(s.substr(line)).empty()) return unclear();
      out.end = i;
      break;
    } else if (c == ',' && depth == 0) {
      if (out.comma == std::string_view::npos) out.comma = i;
    } else if (c == '=' && i + 1 < s.size() && s[i + 1] == '=') {
      if (out.comma == std::string_view::npos || depth > 0) {
        if (out.equals != std::string_view::npos || (depth > 0 && !(out.enclosed && depth == 1))) return unclear();
        out.equals = i;
      }
      ++i;
    } else if (c == '<' || c == '>' || c == '!' || c == ';' || c == '\\' || c == ':' || (c == '\n' && depth == 0)) {
      if (c != ':' || depth == 0 || (i + 1 < s.size() && s[i + 1] == '=')) return unclear();
    }
  }
  if (depth != 0) return unclear();
  return out;
}

}  // namespace

std::optional<EqualityTest> read_equality_test(std::string_view statement) {
  std::string_view rest = trimmed(statement);
  constexpr std::string_view kAssert = "assert";
  if (rest.substr(0, kAssert.size()) != kAssert || rest.size() == kAssert.size() || is_word(rest[kAssert.size()]))
    return std::nullopt;
  rest = trimmed(rest.substr(kAssert.size()));
  Outline outline = outline_of(rest);
  while (outline.clear && outline.enclosed && outline.comma == std::string_view::npos && outline.end == rest.size()) {
    rest = trimmed(rest.substr(1, rest.size() - 2));
    outline = outline_of(rest);
    if (outline.comma != std::string_view::npos) return std::nullopt;  // a tuple, which is always true
  }
  if (!outline.clear || outline.equals == std::string_view::npos) return std::nullopt;
  const std::size_t end = std::min(outline.comma, outline.end);
  if (outline.equals >= end || outline.enclosed) return std::nullopt;
  const std::string_view left = trimmed(rest.substr(0, outline.equals));
  const std::string_view right = trimmed(rest.substr(outline.equals + 2, end - outline.equals - 2));
  if (left.empty() || right.empty()) return std::nullopt;
  if (auto expected = canonical_literal(right)) return EqualityTest{std::string(left), std::move(*expected)};
  if (auto expected = canonical_literal(left)) return EqualityTest{std::string(right), std::move(*expected)};
  return std::nullopt;
}

}  // namespace mortise
