// Splits Python source into words, and skips texts and comments.
#include "python_tokens.h"

#include <algorithm>
#include <string>

#include "parse/text.h"

namespace mortise {

namespace {

// Behind the text that begins with the quote at `at`.
size_t end_of_text(std::string_view source, size_t at) {
  const char quote = source[at];
  const bool is_long = source.substr(at, 3) == std::string(3, quote);
  const std::string_view end = source.substr(at, is_long ? 3 : 1);
  for (at += end.size(); at < source.size(); ++at) {
    if (source[at] == '\\') {
      at += source.substr(at, 3) == "\\\r\n" ? 2 : 1;
    } else if (source.substr(at, end.size()) == end) {
      return at + end.size();
    } else if (source[at] == '\n' && !is_long) {
      return at;  // no Python; the file will not load
    }
  }
  return source.size();
}

}  // namespace

bool is_python_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

std::vector<std::string_view> python_tokens(std::string_view source) {
  source = parse::without_byte_order_mark(source);
  std::vector<std::string_view> tokens;
  int depth = 0;
  for (size_t at = 0; at < source.size();) {
    const char c = source[at];
    if (is_python_word(c)) {
      size_t end = at;
      while (end < source.size() && is_python_word(source[end])) ++end;
      tokens.push_back(source.substr(at, end - at));
      at = end;
      continue;
    }
    if (c == '"' || c == '\'') {
      at = end_of_text(source, at);
      continue;
    }
    if (c == '#') {
      at = std::min(source.find('\n', at), source.size());
      continue;
    }
    if (c == '\\') {  // the line continues
      at += source.substr(at, 3) == "\\\r\n" ? 3 : 2;
      continue;
    }
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') depth = std::max(0, depth - 1);
    const bool is_space = c == ' ' || c == '\t' || c == '\r' || c == '\f' || (c == '\n' && depth > 0);
    if (!is_space) tokens.push_back(source.substr(at, 1));
    ++at;
  }
  tokens.push_back("\n");
  return tokens;
}

}  // namespace mortise
