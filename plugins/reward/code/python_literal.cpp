// Parses a Python literal, and writes its canonical text.
#include "python_literal.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "parse/json.h"
#include "parse/text.h"
#include "python_text.h"

namespace mortise {
namespace {

using Json = nlohmann::json;
using Text = std::optional<std::string>;

constexpr int kMaxDepth = 100;
constexpr std::size_t kMaxLiteral = std::size_t{1} << 20;

// Canonical texts. A letter says the kind; texts carry their length, so that no content looks like a structure.

std::string of_integer(std::string_view digits, bool negative) {
  const std::size_t first = digits.find_first_not_of('0');
  if (first == std::string_view::npos) return "n0";
  return std::string(negative ? "n-" : "n") + std::string(digits.substr(first));
}

Text of_float(double value) {
  if (std::isnan(value)) return std::nullopt;
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[400];
  if (std::floor(value) == value) {
    std::snprintf(text, sizeof text, "%.0f", std::abs(value));
    return of_integer(text, value < 0);
  }
  std::snprintf(text, sizeof text, "f%.17g", value);
  return text;
}

std::string of_bytes(char kind, std::string_view bytes) {
  return kind + std::to_string(bytes.size()) + ":" + std::string(bytes);
}

std::string joined(char open, const std::vector<std::string>& parts, char close) {
  std::string out(1, open);
  for (const std::string& part : parts) out += part + ",";
  return out + close;
}

std::string of_set(std::vector<std::string> parts) {
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  return joined('<', parts, '>');
}

// Reads one literal; gives up on all that is not plainly one.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}

  Text read_all() {
    Text out = value(0);
    skip();
    return at_ == text_.size() ? out : std::nullopt;
  }

 private:
  void skip() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  [[nodiscard]] char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    skip();
    if (text_.substr(at_, word.size()) != word) return false;
    if (at_ + word.size() < text_.size() && is_word(text_[at_ + word.size()])) return false;
    at_ += word.size();
    return true;
  }

  Text value(int depth) {
    if (depth > kMaxDepth) return std::nullopt;
    if (take_word("None")) return "None";
    if (take_word("True")) return "n1";
    if (take_word("False")) return "n0";
    for (const std::string_view maker : {"set", "frozenset", "list", "tuple"}) {
      if (take_word(maker)) return made(maker, depth);
    }
    const char c = peek();
    if (c == '[' || c == '(' || c == '{') return collection(depth);
    if (c == '\'' || c == '"' || c == 'b' || c == 'r' || c == 'u') return texts();
    return number();
  }

  // set([1, 2]), tuple(), ...
  Text made(std::string_view maker, int depth) {
    if (!take('(')) return std::nullopt;
    const bool is_set = maker.back() == 't' && maker != "list";
    const char open = is_set ? '<' : maker == "list" ? '[' : '(';
    std::vector<std::string> parts;
    if (!take(')')) {
      const char inner = peek();
      if (inner != '[' && inner != '(' && inner != '{') return std::nullopt;
      if (!collect(depth + 1, parts) || !take(')')) return std::nullopt;
      if (inner == '{' && !is_set) return std::nullopt;  // an order that is not ours to know
    }
    if (is_set) return of_set(std::move(parts));
    return joined(open, parts, open == '[' ? ']' : ')');
  }

  Text collection(int depth) {
    const char open = peek();
    if (open == '{') return braces(depth);
    std::vector<std::string> parts;
    bool comma = false;
    if (!collect(depth, parts, &comma)) return std::nullopt;
    if (open == '(' && parts.size() == 1 && !comma) return parts[0];  // a value in parentheses
    return joined(open, parts, open == '[' ? ']' : ')');
  }

  // The items of [...], (...) or {...}, which is at the cursor.
  bool collect(int depth, std::vector<std::string>& parts, bool* comma = nullptr) {
    const char open = text_[at_++];
    const char close = open == '[' ? ']' : open == '(' ? ')' : '}';
    while (!take(close)) {
      Text item = value(depth + 1);
      if (!item) return false;
      parts.push_back(std::move(*item));
      if (take(',')) {
        if (comma != nullptr) *comma = true;
      } else if (peek() != close) {
        return false;
      }
    }
    return true;
  }

  Text braces(int depth) {
    ++at_;
    std::vector<std::string> parts, keys;
    bool is_dict = peek() == '}';
    while (!take('}')) {
      Text key = value(depth + 1);
      if (!key) return std::nullopt;
      if (parts.empty()) is_dict = peek() == ':';
      if (is_dict) {
        if (!take(':')) return std::nullopt;
        const Text item = value(depth + 1);
        if (!item) return std::nullopt;
        keys.push_back(*key);
        *key += "=" + *item;
      }
      parts.push_back(std::move(*key));
      if (!take(',') && peek() != '}') return std::nullopt;
    }
    if (!is_dict) return of_set(std::move(parts));
    std::sort(keys.begin(), keys.end());
    if (std::adjacent_find(keys.begin(), keys.end()) != keys.end()) return std::nullopt;
    std::sort(parts.begin(), parts.end());
    return joined('{', parts, '}');
  }

  Text number() {
    bool negative = false;
    while (peek() == '-' || peek() == '+') negative ^= text_[at_++] == '-';
    skip();
    const std::size_t begin = at_;
    while (at_ < text_.size() && (is_word(text_[at_]) || text_[at_] == '.' || is_exponent_sign(begin))) ++at_;
    const std::string digits(text_.substr(begin, at_ - begin));
    if (digits.empty()) return std::nullopt;
    if (digits.find_first_not_of("0123456789") == std::string::npos) {
      if (digits.size() > 1 && digits[0] == '0') return std::nullopt;  // not a literal, except 00
      return of_integer(digits, negative);
    }
    if (digits.find_first_not_of("0123456789.eE+-") != std::string::npos) return std::nullopt;
    char* end = nullptr;
    const double v = std::strtod(digits.c_str(), &end);
    return *end == '\0' ? of_float(negative ? -v : v) : std::nullopt;
  }
  [[nodiscard]] bool is_exponent_sign(std::size_t begin) const {
    return (text_[at_] == '+' || text_[at_] == '-') && at_ > begin && (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E');
  }

  // One or more, which Python joins.
  Text texts() {
    std::string out;
    char kind = '\0';
    while (true) {
      const char c = peek();
      if (c != '\'' && c != '"' && c != 'b' && c != 'r' && c != 'u') break;
      bool bytes = false, raw = false;
      for (; at_ < text_.size() && is_word(text_[at_]); ++at_) {
        bytes |= text_[at_] == 'b';
        raw |= text_[at_] == 'r';
        if (text_[at_] != 'b' && text_[at_] != 'r' && text_[at_] != 'u') return std::nullopt;
      }
      if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return std::nullopt;
      const char this_kind = bytes ? 'b' : 's';
      if (kind != '\0' && kind != this_kind) return std::nullopt;
      kind = this_kind;
      if (!quoted(out, bytes, raw)) return std::nullopt;
    }
    return kind == '\0' ? Text() : of_bytes(kind, out);
  }

  bool quoted(std::string& out, bool bytes, bool raw) {
    const char quote = text_[at_];
    const bool triple = text_.substr(at_, 3) == std::string(3, quote);
    const std::string end(triple ? 3 : 1, quote);
    at_ += end.size();
    while (at_ < text_.size()) {
      if (text_.substr(at_, end.size()) == end) {
        at_ += end.size();
        return true;
      }
      const char c = text_[at_];
      if (c == '\r' || (c == '\n' && !triple) || (bytes && !is_ascii(c))) return false;
      if (c == '\\') {
        if (raw || !escape(out, bytes)) return false;
      } else {
        out += c;
        ++at_;
      }
    }
    return false;
  }

  bool escape(std::string& out, bool bytes) {
    constexpr std::string_view kNames = "\\'\"abfnrtv", kMeaning = "\\'\"\a\b\f\n\r\t\v";
    if (at_ + 1 >= text_.size()) return false;
    const char c = text_[at_ + 1];
    if (const std::size_t known = kNames.find(c); known != std::string_view::npos) {
      out += kMeaning[known];
      at_ += 2;
      return true;
    }
    const std::size_t size = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (size == 0 || (bytes && c != 'x')) return false;  // octal, \N{...}, a line that continues
    const std::string hex(text_.substr(at_ + 2, size));
    if (hex.size() != size || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) return false;
    const unsigned long code = std::strtoul(hex.c_str(), nullptr, 16);
    if (code > 0x10FFFF) return false;
    if (bytes) {
      out += char(code);
    } else {
      parse::append_utf8(out, std::uint32_t(code));
    }
    at_ += 2 + size;
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::optional<std::string> canonical_literal(std::string_view text) {
  return text.size() > kMaxLiteral ? std::nullopt : LiteralReader(text).read_all();
}

namespace {

std::string bytes_of_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += char(std::strtoul(text.substr(i, 2).c_str(), nullptr, 16));
  return bytes;
}

// At most as deep as the JSON, whose depth its reader limits.
Text canonical(const Json& v) {
  if (v.is_null()) return "None";
  if (!v.is_object() || v.size() != 1) return std::nullopt;
  const std::string kind = v.begin().key();
  const Json& content = v.begin().value();
  if (content.is_string()) {
    const std::string text = content.get<std::string>();
    if (kind == "i")
      return !text.empty() && text[0] == '-' ? of_integer(text.substr(1), true) : of_integer(text, false);
    if (kind == "f") return of_float(std::strtod(text.c_str(), nullptr));
    if (kind != "s" && kind != "b") return std::nullopt;
    return of_bytes(kind[0], bytes_of_hex(text));
  }
  if (!content.is_array()) return std::nullopt;
  std::vector<std::string> parts;
  for (const Json& item : content) {
    if (kind == "d") {
      if (!item.is_array() || item.size() != 2) return std::nullopt;
      const Text key = canonical(item[0]), value = canonical(item[1]);
      if (!key || !value) return std::nullopt;
      parts.push_back(*key + "=" + *value);
    } else {
      Text part = canonical(item);
      if (!part) return std::nullopt;
      parts.push_back(std::move(*part));
    }
  }
  if (kind == "e") return of_set(std::move(parts));
  if (kind == "l") return joined('[', parts, ']');
  if (kind == "t") return joined('(', parts, ')');
  if (kind != "d") return std::nullopt;
  std::sort(parts.begin(), parts.end());
  return joined('{', parts, '}');
}

}  // namespace

std::optional<std::string> canonical_value(const std::string& encoded) {
  parse::JsonLimits limits;
  limits.max_depth = 4 * kMaxDepth;
  const auto v = parse::parse_json(encoded, limits);
  return v ? canonical(*v) : std::nullopt;
}

}  // namespace mortise
