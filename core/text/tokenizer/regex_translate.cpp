// Oniguruma (Ruby syntax) -> PCRE2, character by character. See regex.h.
//
// Differences that matter for tokenizers, and what is written instead:
//   \s \S \d \w \b \p{..}   Unicode 16 classes           \h          [0-9A-Fa-f]
//   {n,m}+                  (?:x{n,m})+ (no possessive)   {,n}        {0,n}
//   [a[^b]] [a&&b]          alternatives and lookaheads   (?m:        (?s: (in Ruby, m lets . match a newline)
//   \uHHHH                  \x{HHHH}
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>

#include "foundation/base/text.h"
#include "text/tokenizer/regex.h"
#include "text/unicode/properties.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

using unicode::Category;
using unicode::CategoryMask;
using unicode::CodeRange;

std::string range_text(const std::vector<CodeRange>& ranges) {
  std::string out;
  char buffer[40];
  for (const CodeRange& range : ranges) {
    if (range.first == range.last) {
      std::snprintf(buffer, sizeof buffer, "\\x{%X}", range.first);
    } else {
      std::snprintf(buffer, sizeof buffer, "\\x{%X}-\\x{%X}", range.first, range.last);
    }
    out += buffer;
  }
  return out;
}

// The code points of `ranges` that lie in none of `others`.
std::vector<CodeRange> subtract(const std::vector<CodeRange>& ranges, const std::vector<CodeRange>& others) {
  std::vector<CodeRange> out;
  for (const CodeRange& range : ranges) {
    uint32_t next = range.first;
    for (const CodeRange& other : others) {
      if (other.last < next || other.first > range.last) continue;
      if (other.first > next) out.push_back({next, other.first - 1});
      next = other.last + 1;
    }
    if (next <= range.last) out.push_back({next, range.last});
  }
  return out;
}

struct Property {
  std::string_view name;
  std::string_view short_name;
};
constexpr Property kLongNames[] = {
    {"Letter", "L"},
    {"Cased_Letter", "L&"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Mark", "M"},
    {"Nonspacing_Mark", "Mn"},
    {"Spacing_Mark", "Mc"},
    {"Enclosing_Mark", "Me"},
    {"Number", "N"},
    {"Decimal_Number", "Nd"},
    {"Letter_Number", "Nl"},
    {"Other_Number", "No"},
    {"Punctuation", "P"},
    {"Symbol", "S"},
    {"Math_Symbol", "Sm"},
    {"Currency_Symbol", "Sc"},
    {"Separator", "Z"},
    {"Space_Separator", "Zs"},
    {"Other", "C"},
    {"Control", "Cc"},
    {"Format", "Cf"},
};

constexpr int kMaxClassNesting = 50;
constexpr size_t kMaxTranslatedBytes = size_t{4} << 20;  // \w and \b take 10 kB each

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where, bool exact_ranges)
      : pattern_(pattern), where_(where), exact_ranges_(exact_ranges) {}

  Result<std::string> run() {
    while (pos_ < pattern_.size()) {
      TRY(step());
      if (out_.size() > kMaxTranslatedBytes) return fail("too many character classes");
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] Error fail(const std::string& what) const {
    return Error{ErrorKind::kData, what + " in the regular expression " + quote(pattern_), where_, ""};
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
    out_ += body.front() == ',' ? "{0" + std::string(body) + "}" : "{" + std::string(body) + "}";
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
      if (!in_class) return (negated ? "[^" : "[") + items + "]";
      return items;
    };
    switch (c) {
      case 's':
        pos_ += 2;
        return wrap(range_text(unicode::white_space_ranges()), false);
      case 'S':
        pos_ += 2;
        if (!in_class) return wrap(range_text(unicode::white_space_ranges()), true);
        return range_text(unicode::complement(unicode::white_space_ranges()));
      case 'd':
        pos_ += 2;
        return wrap(category_items("Nd"), false);
      case 'D':
        pos_ += 2;
        return in_class ? outside(mask_of(Category::kNd)) : wrap(category_items("Nd"), true);
      case 'w':
        pos_ += 2;
        return wrap(word_items(), false);
      case 'W':
        pos_ += 2;
        if (in_class) return fail("\\W inside [] is not supported");
        return wrap(word_items(), true);
      case 'h':
        pos_ += 2;
        return wrap("0-9A-Fa-f", false);
      case 'H':
        pos_ += 2;
        return in_class ? Result<std::string>(fail("\\H inside [] is not supported")) : wrap("0-9A-Fa-f", true);
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
    return "\\x{" + std::string(digits) + "}";
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
    for (const Property& alias : kLongNames) {
      if (alias.name == name) name = alias.short_name;
    }
    const CategoryMask mask = unicode::category_mask(name);
    // PCRE2's own \p{Han} is Script_Extensions, which has the punctuation too.
    if (const auto script = mask == 0 ? unicode::script_ranges(name) : std::nullopt) {
      if (negated && in_class) return range_text(unicode::complement(*script));
      return in_class ? range_text(*script) : (negated ? "[^" : "[") + range_text(*script) + "]";
    }
    if (mask == 0) {  // a binary property: by PCRE2's tables; an unknown name fails when it compiles
      return std::string(negated ? "\\P{" : "\\p{") + std::string(name) + "}";
    }
    if (negated && in_class) return outside(mask);
    const std::string items = category_items(name);
    if (in_class) return items;
    return (negated ? "[^" : "[") + items + "]";
  }

  static std::string outside(CategoryMask mask) { return range_text(unicode::complement(unicode::ranges_of(mask))); }

  // Class items for a category of Unicode 16: PCRE2's own (Unicode 14) and what came since, or all ranges.
  const std::string& category_items(std::string_view name) {
    const auto known = category_items_.find(name);
    if (known != category_items_.end()) return known->second;
    return category_items_.emplace(name, make_category_items(name)).first->second;
  }
  [[nodiscard]] std::string make_category_items(std::string_view name) const {
    const CategoryMask mask = unicode::category_mask(name);
    const auto now = unicode::ranges_of(mask);
    const auto then = unicode::ranges_of_unicode14(mask);
    const auto lost = subtract(then, now);
    if (exact_ranges_ || !lost.empty()) return range_text(now);
    return "\\p{" + std::string(name == "LC" ? "L&" : name) + "}" + range_text(subtract(now, then));
  }

  std::string word_items() {
    std::string items =
        category_items("L") + category_items("M") + category_items("Nd") + category_items("Nl") + category_items("Pc");
    // Oniguruma's table also holds these six characters of Latin-1 (superscripts and fractions).
    return items + range_text(unicode::other_word_ranges()) + range_text({{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}});
  }

  std::string boundary(bool negated) {
    const std::string word = "[" + word_items() + "]";
    if (negated) return "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))";
    return "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))";
  }

  // A class at pos_ ("["), as one atom: [items], or a group where classes are nested or intersected.
  Result<std::string> char_class(int nesting = 0) {
    if (nesting > kMaxClassNesting) return fail("character classes are nested too deeply");
    ++pos_;
    const bool negated = at("^");
    if (negated) ++pos_;
    std::vector<std::string> operands;  // of &&
    std::string items;
    std::vector<std::string> nested;
    bool first = true;
    const auto close_operand = [&] {
      std::string atom = items.empty() ? "" : "[" + items + "]";
      for (const std::string& part : nested) atom += (atom.empty() ? "" : "|") + part;
      operands.push_back(nested.empty() ? atom : "(?:" + atom + ")");
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
        const std::string_view name = pattern_.substr(pos_, close + 2 - pos_);
        items += name == "[:punct:]" ? category_items("P") + category_items("S") : std::string(name);
        pos_ = close + 2;
      } else if (at("[")) {
        nested.push_back(TRY(char_class(nesting + 1)));
      } else if (at("\\")) {
        items += TRY(escape(true));
      } else {
        const size_t start = pos_;
        unicode::next_code_point(pattern_, pos_);
        if (pattern_[start] == ']') items += '\\';
        items += pattern_.substr(start, pos_ - start);
      }
      first = false;
    }
    ++pos_;
    if (operands.empty() && nested.empty()) return (negated ? "[^" : "[") + items + "]";
    close_operand();
    std::string atom;
    for (size_t i = 1; i < operands.size(); ++i) atom += "(?=" + operands[i] + ")";
    atom += operands[0];
    return negated ? "(?:(?!" + atom + ")(?s:.))" : "(?:" + atom + ")";
  }

  std::string_view pattern_;
  std::string where_;
  bool exact_ranges_;
  size_t pos_ = 0;
  std::string out_;
  size_t atom_ = 0;                                                 // where the last atom starts in out_
  std::vector<size_t> groups_;                                      // starts of the open groups
  std::map<std::string, std::string, std::less<>> category_items_;  // made so far
};

}  // namespace

Result<std::string> translate_regex(std::string_view pattern, std::string_view where, bool exact_ranges) {
  return Translator(pattern, where, exact_ranges).run();
}

}  // namespace mortise
