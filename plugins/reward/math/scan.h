// Tests of single characters and names, and the end of a formula in delimiters.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string_view>

namespace mortise::math {

inline constexpr std::size_t kNone = std::string_view::npos;
inline constexpr std::size_t kMaxJoined = 20;  // boxes or formulas that make one answer

inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
inline char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; }

inline bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

struct Delimiters {
  std::string_view open, close;
};
inline constexpr Delimiters kDelimiters[] = {{"$$", "$$"}, {"\\[", "\\]"}, {"\\(", "\\)"}, {"$", "$"}};

// The formula that opens at text[i], with its delimiters; empty if there is none.
inline std::string_view formula_at(std::string_view text, std::size_t i) {
  if (i > 0 && text[i] == '$' && text[i - 1] == '\\') return {};
  for (const Delimiters& d : kDelimiters) {
    if (text.substr(i, d.open.size()) != d.open) continue;
    std::size_t end = text.find(d.close, i + d.open.size());
    while (end != kNone && d.close == "$" && text[end - 1] == '\\') end = text.find(d.close, end + 1);
    return end == kNone ? std::string_view() : text.substr(i, end + d.close.size() - i);
  }
  return {};
}

}  // namespace mortise::math
