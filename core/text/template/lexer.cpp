// See lexer.h.
#include "text/template/lexer.h"

#include <fmt/core.h>
#include <algorithm>
#include <cctype>

#include "foundation/base/text.h"
#include "text/template/string_literal.h"
#include "text/unicode/properties.h"
#include "text/unicode/utf8.h"

namespace mortise::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char32_t code) {
  return code == '_' || unicode::is_in(code, unicode::kLetters | mask_of(unicode::Category::kNl));
}
bool is_name_part(char32_t code) { return code == '_' || (unicode::is_word(code) && code != 0x200C && code != 0x200D); }

// "\r\n" and "\r" become "\n"; one newline at the end is dropped.
std::string normalized_source(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

size_t without_space_at_end(std::string_view text) {
  size_t end = text.size();
  for (size_t pos = end; pos > 0 && is_python_space(unicode::previous_code_point(text, pos));) end = pos;
  return end;
}

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view name) : source_(normalized_source(source)), name_(name) {}

  Result<std::vector<Token>> run() {
    while (pos_ < source_.size()) TRY(root());
    tokens_.push_back({TokenType::kEnd, "", place_});
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] Error fail(const std::string& what) const {
    return Error{ErrorKind::kData, what, place_text(name_, place_), ""};
  }
  [[nodiscard]] bool at(std::string_view text) const {
    return std::string_view(source_).substr(pos_).starts_with(text);
  }
  void advance(size_t count) {
    for (const char c : std::string_view(source_).substr(pos_, count)) {
      if (c == '\n') {
        ++place_.line;
        place_.column = 1;
      } else if ((static_cast<unsigned char>(c) & 0xC0U) != 0x80U) {  // no byte inside a character
        ++place_.column;
      }
    }
    pos_ += count;
    line_starting_ = pos_ > 0 && source_[pos_ - 1] == '\n';
  }
  void skip_space() {
    size_t end = pos_;
    for (size_t next = end; next < source_.size() && is_python_space(unicode::next_code_point(source_, next));)
      end = next;
    advance(end - pos_);
  }
  void push(TokenType type, std::string text) { tokens_.push_back({type, std::move(text), place_}); }

  // Text up to the next tag, then the tag.
  Result<> root() {
    size_t tag = pos_;
    while (tag < source_.size() && !(source_[tag] == '{' && tag + 1 < source_.size() &&
                                     (source_[tag + 1] == '%' || source_[tag + 1] == '{' || source_[tag + 1] == '#'))) {
      ++tag;
    }
    if (tag >= source_.size()) {
      push(TokenType::kData, source_.substr(pos_));
      advance(source_.size() - pos_);
      return {};
    }
    const char kind = source_[tag + 1];
    const char sign =
        tag + 2 < source_.size() && (source_[tag + 2] == '-' || source_[tag + 2] == '+') ? source_[tag + 2] : '\0';
    push_data(tag, sign, kind == '{');
    advance(tag - pos_ + 2 + (sign != '\0' ? 1 : 0));
    if (kind == '#') return comment();
    if (kind == '{') return expression(TokenType::kVariableBegin, TokenType::kVariableEnd, "}}");
    if (const size_t end = raw_tag_end("raw", false); end != 0) {
      advance(end);
      return raw_block();
    }
    return expression(TokenType::kBlockBegin, TokenType::kBlockEnd, "%}");
  }

  // The text before a tag at `end`, less what the tag strips.
  void push_data(size_t end, char sign, bool is_variable) {
    std::string_view text = std::string_view(source_).substr(pos_, end - pos_);
    if (sign == '-') {
      text = text.substr(0, without_space_at_end(text));
    } else if (sign != '+' && !is_variable) {
      const size_t line_start = text.rfind('\n') + 1;
      if ((line_start > 0 || line_starting_) && without_space_at_end(text) <= line_start)
        text = text.substr(0, line_start);
    }
    if (!text.empty()) push(TokenType::kData, std::string(text));
  }

  // At pos_: white space, `word`, white space, the block's end. Its length, with what the end strips; 0: no such tag.
  [[nodiscard]] size_t raw_tag_end(std::string_view word, bool trims_newline) const {
    const std::string_view rest = std::string_view(source_).substr(pos_);
    size_t i = 0;
    const auto space = [&] {
      for (size_t next = i; next < rest.size() && is_python_space(unicode::next_code_point(rest, next));) i = next;
    };
    space();
    if (!rest.substr(i).starts_with(word)) return 0;
    i += word.size();
    space();
    if (rest.substr(i).starts_with("-%}")) {
      i += 3;
      space();
      return i;
    }
    if (trims_newline && rest.substr(i).starts_with("+%}")) return i + 3;
    if (!rest.substr(i).starts_with("%}")) return 0;
    i += 2;
    if (trims_newline && i < rest.size() && rest[i] == '\n') ++i;
    return i;
  }

  Result<> raw_block() {
    for (size_t tag = source_.find("{%", pos_); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      const char sign =
          tag + 2 < source_.size() && (source_[tag + 2] == '-' || source_[tag + 2] == '+') ? source_[tag + 2] : '\0';
      const size_t body = pos_;
      const size_t skip = 2 + (sign != '\0' ? 1 : 0);
      pos_ = tag + skip;
      const size_t end = raw_tag_end("endraw", true);
      pos_ = body;
      if (end == 0) continue;
      push_data(tag, sign, false);
      advance(tag - pos_ + skip + end);
      return {};
    }
    return fail("Missing end of raw directive");
  }

  Result<> comment() {
    const size_t end = source_.find("#}", pos_);
    if (end == std::string::npos) return fail("Missing end of comment tag");
    const char sign = end > pos_ ? source_[end - 1] : '\0';
    advance(end - pos_ + 2);
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && at("\n")) {
      advance(1);
    }
    return {};
  }

  Result<> expression(TokenType begin, TokenType end, std::string_view closing) {
    push(begin, "");
    const bool is_block = end == TokenType::kBlockEnd;
    braces_.clear();
    while (true) {
      skip_space();
      if (pos_ >= source_.size()) {
        return fail(is_block ? "unexpected end of template, expected 'end of statement block'."
                             : "unexpected end of template, expected 'end of print statement'.");
      }
      if (braces_.empty()) {
        const bool strips = at("-" + std::string(closing));
        const bool keeps = is_block && at("+%}");
        if (strips || keeps || at(closing)) {
          push(end, "");
          advance(closing.size() + (strips || keeps ? 1 : 0));
          if (strips) skip_space();
          if (is_block && !strips && !keeps && at("\n")) advance(1);
          return {};
        }
      }
      TRY(inner_token());
    }
  }

  Result<> inner_token() {
    const char c = source_[pos_];
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string(c);
    size_t next = pos_;
    const char32_t code = unicode::next_code_point(source_, next);
    if (is_name_start(code)) {
      size_t end = next;
      while (next < source_.size() && is_name_part(unicode::next_code_point(source_, next))) end = next;
      push(TokenType::kName, source_.substr(pos_, end - pos_));
      advance(end - pos_);
      return {};
    }
    return op();
  }

  // Digits with single underscores between them, from `at`; returns the end.
  template <class IsDigit>
  [[nodiscard]] size_t digits_end(size_t from, IsDigit digit) const {
    size_t end = from;
    while (end < source_.size() && (digit(source_[end]) || (source_[end] == '_' && end > from &&
                                                            end + 1 < source_.size() && digit(source_[end + 1]))))
      ++end;
    return end;
  }

  Result<> number() {
    const auto decimal = [](char c) { return is_digit(c); };
    const char marker =
        pos_ + 1 < source_.size() && source_[pos_] == '0' ? static_cast<char>(source_[pos_ + 1] | 0x20) : '\0';
    size_t end = pos_;
    bool is_float = false;
    if (marker == 'x' || marker == 'o' || marker == 'b') {
      end = digits_end(pos_ + 2, [marker](char c) {
        if (marker == 'x') return std::isxdigit(static_cast<unsigned char>(c)) != 0;
        return c >= '0' && c <= (marker == 'o' ? '7' : '1');
      });
      if (end == pos_ + 2) end = pos_ + 1;
    } else {
      end = digits_end(pos_, decimal);
      const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';
      if (!after_dot && end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
        end = digits_end(end + 1, decimal);
        is_float = true;
      }
      if (!after_dot && end < source_.size() && (source_[end] | 0x20) == 'e') {
        size_t power = end + 1;
        if (power < source_.size() && (source_[power] == '+' || source_[power] == '-')) ++power;
        if (power < source_.size() && is_digit(source_[power])) {
          end = digits_end(power, decimal);
          is_float = true;
        }
      }
      // Jinja has no leading zeros: "012" reads as 0, then 12.
      if (!is_float && source_[pos_] == '0') end = digits_end(pos_, [](char c) { return c == '0'; });
    }
    std::string text = source_.substr(pos_, end - pos_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    push(is_float ? TokenType::kFloat : TokenType::kInteger, std::move(text));
    advance(end - pos_);
    return {};
  }

  Result<> string(char mark) {
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != mark) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size())
      return fail(fmt::format("unexpected char {} at {}", quote(source_.substr(pos_, 1)), pos_));
    auto value = unescape_string(std::string_view(source_).substr(pos_ + 1, end - pos_ - 1));
    if (!value.ok()) return fail(value.error().what);
    push(TokenType::kString, *std::move(value));
    advance(end + 1 - pos_);
    return {};
  }

  Result<> op() {
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view text : kOperators) {
      if (!at(text)) continue;
      if (text == "(" || text == "[" || text == "{") braces_.push_back(text == "(" ? ')' : text == "[" ? ']' : '}');
      if (text == ")" || text == "]" || text == "}") {
        if (braces_.empty()) return fail(fmt::format("unexpected '{}'", text));
        const char expected = braces_.back();
        if (expected != text[0])
          return fail(fmt::format("unexpected '{}', expected '{}'", text, std::string(1, expected)));
        braces_.pop_back();
      }
      push(TokenType::kOperator, std::string(text));
      advance(text.size());
      return {};
    }
    const size_t size = unicode::utf8_length(source_[pos_]);
    return fail(fmt::format("unexpected char '{}' at {}", source_.substr(pos_, size), pos_));
  }

  std::string source_;
  std::string name_;
  std::vector<Token> tokens_;
  std::string braces_;  // closers still expected
  size_t pos_ = 0;
  Place place_;
  bool line_starting_ = true;
};

}  // namespace

bool is_python_space(char32_t code) { return unicode::is_white_space(code) || (code >= 0x1C && code <= 0x1F); }

Result<std::vector<Token>> tokenize(std::string_view source, std::string_view name) {
  return Lexer(source, name).run();
}

}  // namespace mortise::jinja
