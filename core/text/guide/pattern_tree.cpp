// See pattern_tree.h.
#include "text/guide/pattern_tree.h"

#include <fmt/core.h>

#include <optional>
#include <string>

#include "foundation/base/text.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

constexpr int kMostNested = 200;
constexpr int kMostRepeats = 100'000;

bool is_ascii_letter(uint32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_ascii_digit(uint32_t c) { return c >= '0' && c <= '9'; }

int hex_digit(char32_t c) {
  if (is_ascii_digit(c)) return static_cast<int>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<int>(c - 'a') + 10;
  if (c >= 'A' && c <= 'F') return static_cast<int>(c - 'A') + 10;
  return -1;
}

CodeRanges one_character(char32_t c) { return CodeRanges({{c, c}}); }

// \d \w \s and their opposites.
std::optional<CodeRanges> named_set(char32_t letter) {
  const auto of = [&](char32_t lower) -> std::optional<CodeRanges> {
    if (lower == 'd') return CodeRanges({{'0', '9'}});
    if (lower == 'w') return CodeRanges({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
    if (lower == 's') return CodeRanges({{'\t', '\r'}, {' ', ' '}, {0xA0, 0xA0}});
    return std::nullopt;
  };
  if (auto set = of(letter)) return set;
  if (letter >= 'A' && letter <= 'Z') {
    if (const auto set = of(letter + ('a' - 'A'))) return set->others();
  }
  return std::nullopt;
}

std::optional<char32_t> control_character(char32_t letter) {
  switch (letter) {
    case 'n':
      return U'\n';
    case 'r':
      return U'\r';
    case 't':
      return U'\t';
    case 'f':
      return U'\f';
    case 'v':
      return U'\v';
    case 'a':
      return U'\a';
    case 'e':
      return U'\x1B';
    default:
      return std::nullopt;
  }
}

// Why an escape is refused.
std::string_view refused_escape(char32_t letter) {
  if (letter == 'b' || letter == 'B') return "a word boundary is not supported";
  if (letter == 'p' || letter == 'P') return "classes of Unicode properties are not supported";
  if (letter == 'A' || letter == 'Z' || letter == 'z') return "the whole text has to match in any case";
  if (letter == 'k' || (letter >= '1' && letter <= '9')) return "a reference to a group is not supported";
  return "there is no such escape";
}

class GuideParser {
 public:
  explicit GuideParser(std::string_view pattern) : text_(unicode::to_code_points(pattern)) {}

  Result<PatternTree> parse() {
    if (at_ < text_.size() && text_[at_] == '^') ++at_;
    tree_.root = TRY(choice(0));
    if (at_ < text_.size()) return fault(at_, "')' closes no group", "write \\) for the character");
    return std::move(tree_);
  }

 private:
  [[nodiscard]] Error fault(size_t at, std::string_view what, std::string next = "") const {
    return {ErrorKind::kConfig, fmt::format("the pattern is wrong at character {}: {}", at + 1, what), "",
            std::move(next)};
  }
  [[nodiscard]] bool is_at(char32_t c) const { return at_ < text_.size() && text_[at_] == c; }
  size_t add(PatternNode node) {
    tree_.nodes.push_back(std::move(node));
    return tree_.nodes.size() - 1;
  }

  size_t add_class(CodeRanges set) {
    PatternNode node;
    node.kind = PatternNode::Kind::kClass;
    node.set = std::move(set);
    return add(std::move(node));
  }
  size_t add_parent(PatternNode::Kind kind, std::vector<size_t> children) {
    PatternNode node;
    node.kind = kind;
    node.children = std::move(children);
    return add(std::move(node));
  }

  Result<size_t> choice(int depth) {
    if (depth > kMostNested) return fault(at_, "groups are nested too deeply", "write it with fewer groups");
    std::vector<size_t> options;
    options.push_back(TRY(sequence(depth)));
    while (is_at('|')) {
      ++at_;
      options.push_back(TRY(sequence(depth)));
    }
    if (options.size() == 1) return options.front();
    return add_parent(PatternNode::Kind::kChoice, std::move(options));
  }

  Result<size_t> sequence(int depth) {
    std::vector<size_t> parts;
    while (at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')') {
      if (text_[at_] == '$' && at_ + 1 == text_.size()) {
        ++at_;
        break;
      }
      const size_t part = TRY(atom(depth));
      parts.push_back(TRY(repeated(part)));
    }
    return parts.size() == 1 ? parts.front() : add_parent(PatternNode::Kind::kSequence, std::move(parts));
  }

  Result<size_t> atom(int depth) {
    const size_t begin = at_;
    const char32_t c = text_[at_++];
    switch (c) {
      case '(':
        return group(begin, depth);
      case '[':
        return add_class(TRY(char_class(begin)));
      case '.':
        return add_class(CodeRanges().others());
      case '\\':
        return add_class(TRY(escape(begin)));
      case '*':
      case '+':
      case '?':
        return fault(begin, "there is nothing to repeat", "write a \\ before it for the character");
      case '{':
        return fault(begin, "'{' is not behind anything that could be repeated", "write \\{ for the character");
      case '^':
      case '$':
        return fault(begin, "'^' is supported as the first character and '$' as the last one alone",
                     "write a \\ before it for the character");
      default:
        return add_class(one_character(c));
    }
  }

  Result<size_t> group(size_t begin, int depth) {
    if (is_at('?')) TRY(group_kind(begin));
    const size_t inside = TRY(choice(depth + 1));
    if (!is_at(')')) return fault(begin, "the group is not closed", "write \\( for the character");
    ++at_;
    return inside;
  }

  // Behind "(": "?:", "?<name>" or "?P<name>".
  Result<> group_kind(size_t begin) {
    ++at_;
    if (is_at(':')) {
      ++at_;
      return {};
    }
    if (is_at('=') || is_at('!')) return fault(begin, "looking ahead is not supported");
    if (is_at('P')) ++at_;
    if (!is_at('<')) return fault(begin, "this kind of group is not supported", "use (...) or (?:...)");
    ++at_;
    if (is_at('=') || is_at('!')) return fault(begin, "looking behind is not supported");
    while (at_ < text_.size() && (is_ascii_letter(text_[at_]) || is_ascii_digit(text_[at_]) || text_[at_] == '_'))
      ++at_;
    if (!is_at('>'))
      return fault(begin, "the name of the group is wrong", "write (?<name>...), or (...) without a name");
    ++at_;
    return {};
  }

  Result<size_t> repeated(size_t child) {
    const size_t begin = at_;
    PatternNode node;
    node.kind = PatternNode::Kind::kRepeat;
    node.children.push_back(child);
    if (is_at('*') || is_at('+') || is_at('?')) {
      const char32_t c = text_[at_++];
      node.least = c == '+' ? 1 : 0;
      node.most = c == '?' ? 1 : PatternNode::kNoEnd;
    } else if (is_at('{')) {
      TRY(repeat_range(node));
    } else {
      return child;
    }
    if (is_at('?')) ++at_;  // a lazy repeat matches the same texts
    if (is_at('*') || is_at('+') || is_at('?') || is_at('{'))
      return fault(begin, "a repeat is repeated", "put a group around the first one");
    return add(std::move(node));
  }

  // {m}, {m,} or {m,n}
  Result<> repeat_range(PatternNode& node) {
    const size_t begin = at_++;
    const auto number = [&]() -> std::optional<int> {
      const size_t first = at_;
      int value = 0;
      while (at_ < text_.size() && is_ascii_digit(text_[at_]) && value <= kMostRepeats)
        value = value * 10 + static_cast<int>(text_[at_++] - '0');
      return at_ == first ? std::nullopt : std::optional(value);
    };
    const auto least = number();
    if (!least) return fault(begin, "'{' begins no repeat such as {2} or {1,3}", "write \\{ for the character");
    node.least = node.most = *least;
    if (is_at(',')) {
      ++at_;
      node.most = number().value_or(PatternNode::kNoEnd);
    }
    if (std::max(node.least, node.most) > kMostRepeats)
      return fault(begin, fmt::format("the repeat is above {}", kMostRepeats), "lower it");
    if (!is_at('}')) return fault(begin, "the repeat is not closed by '}'", "write \\{ for the character");
    ++at_;
    if (node.most != PatternNode::kNoEnd && node.most < node.least)
      return fault(begin, "the most that a repeat allows is below the least", "write {least,most}");
    return {};
  }

  // Behind a "\" at `begin`.
  Result<CodeRanges> escape(size_t begin) {
    if (at_ == text_.size()) return fault(begin, "the escape is not finished", "write \\\\ for the character");
    const char32_t c = text_[at_++];
    if (auto set = named_set(c)) return *std::move(set);
    return one_character(TRY(escaped_character(begin, c)));
  }

  Result<char32_t> escaped_character(size_t begin, char32_t c) {
    if (const auto control = control_character(c)) return *control;
    if (c == 'x') return hex_character(begin, 2);
    if (c == 'U') return hex_character(begin, 8);
    if (c == 'u') return is_at('{') ? braced_character(begin) : hex_character(begin, 4);
    if (c == 'c') {
      if (at_ == text_.size() || !is_ascii_letter(text_[at_])) return fault(begin, "\\c needs a letter");
      return text_[at_++] % 32;
    }
    if (c == '0') {
      if (at_ < text_.size() && is_ascii_digit(text_[at_])) return fault(begin, "octal numbers are not supported");
      return U'\0';
    }
    if (is_ascii_letter(c) || is_ascii_digit(c))
      return fault(begin, refused_escape(c), "write \\\\ for the character '\\'");
    return c;
  }

  Result<char32_t> checked(size_t begin, char32_t code) const {
    if (code > kLastCodePoint || (code >= 0xD800 && code <= 0xDFFF))
      return fault(begin, "there is no character of this number");
    return code;
  }

  Result<char32_t> hex_character(size_t begin, int digits) {
    char32_t code = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const int digit = at_ < text_.size() ? hex_digit(text_[at_]) : -1;
      if (digit < 0) return fault(begin, fmt::format("the escape needs {} hexadecimal digits", digits));
      code = code * 16 + static_cast<char32_t>(digit);
    }
    return checked(begin, code);
  }

  Result<char32_t> braced_character(size_t begin) {
    char32_t code = 0;
    ++at_;
    const size_t first = at_;
    while (at_ < text_.size() && hex_digit(text_[at_]) >= 0 && at_ - first < 6)
      code = code * 16 + static_cast<char32_t>(hex_digit(text_[at_++]));
    if (at_ == first || !is_at('}')) return fault(begin, "\\u{...} needs 1 to 6 hexadecimal digits");
    ++at_;
    return checked(begin, code);
  }

  // One character or escape of a class.
  Result<CodeRanges> class_part() {
    const size_t begin = at_;
    const char32_t c = text_[at_++];
    if (c == '[' && (is_at(':') || is_at('.') || is_at('=')))
      return fault(begin, "POSIX classes are not supported", "write \\[ for the character");
    if (c != '\\') return one_character(c);
    if (is_at('b')) {
      ++at_;
      return one_character('\b');
    }
    return escape(begin);
  }

  // Behind a "[" at `begin`.
  Result<CodeRanges> char_class(size_t begin) {
    const bool is_negated = is_at('^');
    if (is_negated) ++at_;
    if (is_at(']')) return fault(begin, "the class has no characters", "write \\] for the character");
    CodeRanges set;
    while (at_ < text_.size() && text_[at_] != ']') {
      const size_t first_at = at_;
      const CodeRanges first = TRY(class_part());
      if (!is_at('-') || at_ + 1 >= text_.size() || text_[at_ + 1] == ']') {
        set.add(first);
        continue;
      }
      ++at_;
      const CodeRanges last = TRY(class_part());
      const auto single = [](const CodeRanges& one) {
        return one.ranges().size() == 1 && one.ranges()[0].first == one.ranges()[0].last;
      };
      if (!single(first) || !single(last))
        return fault(first_at, "a range needs a character on each side", "write \\- for the character");
      if (first.ranges()[0].first > last.ranges()[0].first)
        return fault(first_at, "the range ends before it begins", "turn it round");
      set.add(CodeRanges({{first.ranges()[0].first, last.ranges()[0].first}}));
    }
    if (at_ == text_.size()) return fault(begin, "the class is not closed", "write \\[ for the character");
    ++at_;
    if (is_negated) set = set.others();
    if (set.empty()) return fault(begin, "the class has no characters", "");
    return set;
  }

  std::u32string text_;
  size_t at_ = 0;
  PatternTree tree_;
};

}  // namespace

Result<PatternTree> parse_pattern(std::string_view pattern) {
  if (pattern.size() > kMostPatternBytes) {
    return Error{ErrorKind::kConfig,
                 fmt::format("the pattern has {} bytes, at most {} are allowed", pattern.size(), kMostPatternBytes), "",
                 "shorten it"};
  }
  if (const auto bad = find_invalid_utf8(pattern)) {
    return Error{ErrorKind::kConfig, fmt::format("the pattern is not UTF-8 at byte {}", *bad), "", "correct it"};
  }
  return GuideParser(pattern).parse();
}

std::string escaped_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace mortise
