// Oniguruma (Ruby syntax) -> PCRE2, character by character. See regex.h.
//
// Differences that matter for tokenizers, and what is written instead:
//   \s \S \d \w \b \p{..}   Unicode 16 classes           \h          [0-9A-Fa-f]
//   {n,m}+                  (?:x{n,m})+ (no possessive)   {,n}        {0,n}
//   [a[^b]] [a&&b]          alternatives and lookaheads   (?m:        (?s: (in Ruby, m lets . match a newline)
//   \uHHHH                  \x{HHHH}
#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "foundation/base/text.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/regex_classes.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

constexpr int kMaxClassNesting = 50;

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where, bool exact_ranges)
      : pattern_(pattern), where_(where), classes_(exact_ranges) {}

  Result<std::string> run() {
    while (pos_ < pattern_.size()) {
      TRY(step());
      if (out_.size() > kMaxTranslatedBytes) return fail("too many character classes");
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] Error fail(const std::string& what) const {
    return Error{ErrorKind::kData, fmt::format("{} in the regular expression {}", what, quote(pattern_)), where_, ""};
  }
  [[nodiscard]] bool at(std::string_view text) const { return pattern_.substr(pos_).starts_with(text); }

  void begin_atom() { atom_ = out_.size(); }

  Result<> step() {
    const char c = pattern_[pos_];
    switch (c) {
      case '\\': {
        begin_atom();
        out_ += TRY(escape(false));
        return {};
      }
      case '[':
        begin_atom();
        out_ += TRY(char_class());
        return {};
      case '(':
        return open_group();
      case ')':
        ++pos_;
        out_ += ')';
        if (!groups_.empty()) {
          atom_ = groups_.back();
          groups_.pop_back();
        }
        return {};
      case '{':
        return braces();
      default: {
        const size_t start = pos_;
        unicode::next_code_point(pattern_, pos_);
        const bool is_quantifier = c == '*' || c == '+' || c == '?';
        if (!is_quantifier) begin_atom();
        out_ += pattern_.substr(start, pos_ - start);
        return {};
      }
    }
  }

  Result<> open_group() {
    groups_.push_back(out_.size());
    ++pos_;
    out_ += '(';
    if (!at("?")) return {};
    out_ += '?';
    ++pos_;
    // Option letters: "(?i)", "(?mi-x:". Anything else after "(?" means the same in both languages.
    while (pos_ < pattern_.size() && std::string_view("imx-").find(pattern_[pos_]) != std::string_view::npos) {
      const char option = pattern_[pos_++];
      if (option == 'x') return fail("the option x is not supported");
      out_ += option == 'm' ? 's' : option;
    }
    if (at("#")) return fail("a comment is not supported");
    return {};
  }

  // {n}, {n,}, {n,m}, {,m}; any other brace is a plain character.
  Result<> braces() {
    const size_t close = pattern_.find('}', pos_);
    const std::string_view body = close == std::string_view::npos ? "" : pattern_.substr(pos_ + 1, close - pos_ - 1);
    const bool is_interval =
        !body.empty() && body != "," && std::count(body.begin(), body.end(), ',') <= 1 &&
        std::all_of(body.begin(), body.end(), [](char c) { return c == ',' || (c >= '0' && c <= '9'); });
    if (!is_interval) {
      begin_atom();
      out_ += "\\{";
      ++pos_;
      return {};
    }
    out_ += body.front() == ',' ? fmt::format("{{0{}}}", body) : fmt::format("{{{}}}", body);
    pos_ = close + 1;
    if (at("+")) {  // Ruby: repeats the interval; PCRE2 would read a possessive quantifier
      out_.insert(atom_, "(?:");
      out_ += ")";
    }
    return {};
  }

  // One escape at pos_. Inside a class the result has to be class items.
  Result<std::string> escape(bool in_class) {
    if (pos_ + 1 >= pattern_.size()) return fail("a backslash ends the pattern");
    const char c = pattern_[pos_ + 1];
    const auto wrap = [&](const std::string& items, bool negated) {
      if (!in_class) return fmt::format("{}{}]", negated ? "[^" : "[", items);
      return items;
    };
    switch (c) {
      case 's':
        pos_ += 2;
        return wrap(RegexClasses::space(), false);
      case 'S':
        pos_ += 2;
        return in_class ? RegexClasses::not_space() : wrap(RegexClasses::space(), true);
      case 'd':
        pos_ += 2;
        return wrap(classes_.digit(), false);
      case 'D':
        pos_ += 2;
        return classes_.property("Nd", true, in_class);
      case 'w':
        pos_ += 2;
        return wrap(classes_.word(), false);
      case 'W':
        pos_ += 2;
        return fmt::format("[^{}]", classes_.word());
      case 'h':
        pos_ += 2;
        return wrap("0-9A-Fa-f", false);
      case 'H':
        pos_ += 2;
        return std::string("[^0-9A-Fa-f]");
      case 'b':
      case 'B':
        pos_ += 2;
        return in_class ? std::string("\\x{8}") : boundary(c == 'B');
      case 'p':
      case 'P':
        return property(in_class);
      case 'u':
        return unicode_escape();
      default: {
        const size_t start = pos_;
        ++pos_;
        unicode::next_code_point(pattern_, pos_);
        if (c == 'x' && at("{")) pos_ = std::min(pattern_.find('}', pos_), pattern_.size() - 1) + 1;
        return std::string(pattern_.substr(start, pos_ - start));
      }
    }
  }

  Result<std::string> unicode_escape() {
    const std::string_view digits = pattern_.substr(pos_ + 2, 4);
    const bool hex = digits.size() == 4 &&
                     std::all_of(digits.begin(), digits.end(), [](unsigned char d) { return std::isxdigit(d) != 0; });
    if (!hex) return fail("\\u needs four hexadecimal digits");
    pos_ += 6;
    return fmt::format("\\x{{{}}}", digits);
  }

  Result<std::string> property(bool in_class) {
    bool negated = pattern_[pos_ + 1] == 'P';
    const size_t close = pattern_.find('}', pos_);
    if (pos_ + 2 >= pattern_.size() || pattern_[pos_ + 2] != '{' || close == std::string_view::npos) {
      return fail("\\p needs a name in braces");
    }
    std::string_view name = pattern_.substr(pos_ + 3, close - pos_ - 3);
    pos_ = close + 1;
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    return classes_.property(name, negated, in_class);
  }

  std::string boundary(bool negated) {
    const std::string word = fmt::format("[{}]", classes_.word());
    if (negated) return fmt::format("(?:(?<={})(?={})|(?<!{})(?!{}))", word, word, word, word);
    return fmt::format("(?:(?<={})(?!{})|(?<!{})(?={}))", word, word, word, word);
  }

  // A class at pos_ ("["), as one atom: [items], or a group where classes are nested or intersected.
  Result<std::string> char_class(int nesting = 0) {
    if (nesting > kMaxClassNesting) return fail("character classes are nested too deeply");
    ++pos_;
    const bool negated = at("^");
    if (negated) ++pos_;
    std::vector<std::string> operands;  // the parts around &&
    std::string items;
    std::vector<std::string> nested;
    bool first = true;
    const auto close_operand = [&] {
      std::string atom = items.empty() ? "" : fmt::format("[{}]", items);
      for (const std::string& part : nested) atom += (atom.empty() ? "" : "|") + part;
      operands.push_back(nested.empty() ? atom : fmt::format("(?:{})", atom));
      items.clear();
      nested.clear();
    };
    while (true) {
      if (pos_ >= pattern_.size()) return fail("a [ is not closed");
      if (items.size() > kMaxTranslatedBytes) return fail("too many character classes");
      if (pattern_[pos_] == ']' && !first) break;
      if (at("&&")) {
        pos_ += 2;
        close_operand();
      } else if (at("[:")) {
        const size_t close = pattern_.find(":]", pos_);
        if (close == std::string_view::npos) return fail("a [: is not closed");
        std::string_view name = pattern_.substr(pos_ + 2, close - pos_ - 2);
        const bool is_negated = name.starts_with('^');
        if (is_negated) name.remove_prefix(1);
        const auto posix = classes_.posix(name);
        if (!posix) return fail(fmt::format("there is no class [:{}:]", name));
        if (is_negated) {
          nested.push_back(fmt::format("[^{}]", *posix));
        } else {
          items += *posix;
        }
        pos_ = close + 2;
      } else if (at("[")) {
        nested.push_back(TRY(char_class(nesting + 1)));
      } else if (at("\\")) {
        std::string item = TRY(escape(true));
        if (item.starts_with("[^")) {
          nested.push_back(std::move(item));
        } else {
          items += item;
        }
      } else {
        const size_t start = pos_;
        unicode::next_code_point(pattern_, pos_);
        if (pattern_[start] == ']') items += '\\';
        items += pattern_.substr(start, pos_ - start);
      }
      first = false;
    }
    ++pos_;
    if (operands.empty() && nested.empty()) return fmt::format("{}{}]", negated ? "[^" : "[", items);
    close_operand();
    std::string atom;
    for (size_t i = 1; i < operands.size(); ++i) atom += fmt::format("(?={})", operands[i]);
    atom += operands[0];
    return negated ? fmt::format("(?:(?!{})(?s:.))", atom) : fmt::format("(?:{})", atom);
  }

  std::string_view pattern_;
  std::string where_;
  RegexClasses classes_;
  size_t pos_ = 0;
  std::string out_;
  size_t atom_ = 0;             // where the last atom starts in out_
  std::vector<size_t> groups_;  // starts of the open groups
};

}  // namespace

Result<std::string> translate_regex(std::string_view pattern, std::string_view where, bool exact_ranges) {
  return Translator(pattern, where, exact_ranges).run();
}

}  // namespace mortise
