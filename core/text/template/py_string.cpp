// See py_string.h.
#include "text/template/py_string.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "foundation/base/text.h"
#include "text/template/lexer.h"
#include "text/template/work.h"
#include "text/unicode/properties.h"
#include "text/unicode/utf8.h"

namespace mortise::jinja {
namespace {

using unicode::Category;
using unicode::is_in;

constexpr unicode::CategoryMask kUpperOrTitle = mask_of(Category::kLu) | mask_of(Category::kLt);
constexpr unicode::CategoryMask kCased = kUpperOrTitle | mask_of(Category::kLl);

bool is_cased(char32_t code) { return is_in(code, kCased); }

bool is_case_ignorable(char32_t code) {
  constexpr unicode::CategoryMask kIgnorable = mask_of(Category::kMn) | mask_of(Category::kMe) |
                                               mask_of(Category::kCf) | mask_of(Category::kLm) | mask_of(Category::kSk);
  return is_in(code, kIgnorable) || code == '\'' || code == '.' || code == ':' || code == 0xB7 || code == 0x2019;
}

constexpr char32_t kSigma = 0x3A3;

// A sigma ends a word if a cased letter comes before it and none after it, ignoring marks.
bool is_final_sigma(std::string_view text, size_t begin, size_t end) {
  bool before = false;
  for (size_t pos = begin; pos > 0;) {
    const char32_t code = unicode::previous_code_point(text, pos);
    if (is_case_ignorable(code)) continue;
    before = is_cased(code);
    break;
  }
  if (!before) return false;
  for (size_t pos = end; pos < text.size();) {
    const char32_t code = unicode::next_code_point(text, pos);
    if (!is_case_ignorable(code)) return !is_cased(code);
  }
  return true;
}

void append_lower_at(std::string& out, std::string_view text, size_t begin, size_t end, char32_t code) {
  if (code == kSigma) {
    append_utf8(out, is_final_sigma(text, begin, end) ? 0x3C2 : 0x3C3);
  } else {
    unicode::append_lower(out, code);
  }
}

bool is_line_end(char32_t code) {
  return (code >= 0xA && code <= 0xD) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

// Before one more part: whether a rendering may hold so many, as texts and then as values.
Result<> room_for_part(const std::vector<std::string>& parts) {
  constexpr size_t kBytes = sizeof(std::string) + kObjectBytes;
  return room_for(parts.size() * kBytes);
}

Result<std::vector<std::string>> split_at_space(std::string_view text, int64_t max_splits) {
  std::vector<std::string> parts;
  size_t pos = 0;
  while (true) {
    TRY(room_for_part(parts));
    text = strip_text(text.substr(pos), std::nullopt, Side::kLeft);
    pos = 0;
    if (text.empty()) return parts;
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) >= max_splits) {
      parts.emplace_back(strip_text(text, std::nullopt, Side::kRight));
      return parts;
    }
    size_t end = 0;
    for (size_t next = 0; next < text.size() && !is_python_space(unicode::next_code_point(text, next));) end = next;
    parts.emplace_back(text.substr(0, end));
    pos = end;
  }
}

Result<std::vector<std::string>> split_at_space_from_right(std::string_view text, int64_t max_splits) {
  std::vector<std::string> parts;
  while (true) {
    TRY(room_for_part(parts));
    text = strip_text(text, std::nullopt, Side::kRight);
    if (text.empty()) break;
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) >= max_splits) {
      parts.emplace_back(strip_text(text, std::nullopt, Side::kLeft));
      break;
    }
    size_t begin = text.size();
    for (size_t pos = begin; pos > 0 && !is_python_space(unicode::previous_code_point(text, pos));) begin = pos;
    parts.emplace_back(text.substr(begin));
    text = text.substr(0, begin);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

// Underscores may be only between digits.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const auto alnum = [&](size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
    };
    if (i == 0 || !alnum(i - 1) || !alnum(i + 1)) return std::nullopt;
  }
  return out;
}

bool all_codes(std::string_view text, bool (*test)(char32_t)) {
  for (size_t pos = 0; pos < text.size();) {
    if (!test(unicode::next_code_point(text, pos))) return false;
  }
  return true;
}

bool is_digit_char(char32_t code) {
  return is_in(code, mask_of(Category::kNd)) || code == 0xB2 || code == 0xB3 || code == 0xB9 || code == 0x2070 ||
         (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089) || (code >= 0x2460 && code <= 0x2468);
}

}  // namespace

std::string lower_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t code = unicode::next_code_point(text, pos);
    append_lower_at(out, text, begin, pos, code);
  }
  return out;
}

std::string upper_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) unicode::append_upper(out, unicode::next_code_point(text, pos));
  return out;
}

std::string title_text(std::string_view text) {
  std::string out;
  bool after_cased = false;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t code = unicode::next_code_point(text, pos);
    if (after_cased) {
      append_lower_at(out, text, begin, pos, code);
    } else {
      unicode::append_title(out, code);
    }
    after_cased = is_cased(code);
  }
  return out;
}

std::string capitalize_text(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t code = unicode::next_code_point(text, pos);
    if (begin == 0) {
      unicode::append_title(out, code);
    } else {
      append_lower_at(out, text, begin, pos, code);
    }
  }
  return out;
}

std::string swapcase_text(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t code = unicode::next_code_point(text, pos);
    if (is_in(code, mask_of(Category::kLu))) {
      append_lower_at(out, text, begin, pos, code);
    } else {
      unicode::append_upper(out, code);
    }
  }
  return out;
}

// The most that std::string_view::rfind may come to: it compares at every place.
static size_t rfind_cost(std::string_view text, std::string_view part) {
  return text.size() / 16 * (part.size() / 32 + 1);
}

std::string_view strip_text(std::string_view text, std::optional<std::string_view> chars, Side side) {
  std::u32string set = chars ? unicode::to_code_points(*chars) : std::u32string();
  std::sort(set.begin(), set.end());
  const auto stripped = [&](char32_t code) {
    return chars ? std::binary_search(set.begin(), set.end(), code) : is_python_space(code);
  };
  size_t begin = 0;
  size_t end = text.size();
  if (side != Side::kRight) {
    for (size_t pos = 0; pos < end && stripped(unicode::next_code_point(text, pos));) begin = pos;
  }
  if (side != Side::kLeft) {
    for (size_t pos = end; pos > begin && stripped(unicode::previous_code_point(text, pos));) end = pos;
  }
  return text.substr(begin, end - begin);
}

Result<std::vector<std::string>> split_text(std::string_view text, std::optional<std::string_view> separator,
                                            int64_t max_splits, bool from_right) {
  if (!separator) return from_right ? split_at_space_from_right(text, max_splits) : split_at_space(text, max_splits);
  if (separator->empty()) return type_error("empty separator");
  std::vector<std::string> parts;
  if (from_right) TRY(use_work(rfind_cost(text, *separator)));
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t at = from_right ? text.rfind(*separator) : find_text(text, *separator);
    if (at == std::string_view::npos) break;
    TRY(room_for_part(parts));
    parts.emplace_back(from_right ? text.substr(at + separator->size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator->size());
  }
  parts.emplace_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Result<std::vector<std::string>> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pos;
    const char32_t code = unicode::next_code_point(text, pos);
    if (!is_line_end(code)) continue;
    TRY(room_for_part(lines));
    if (code == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    lines.emplace_back(text.substr(begin, (keep_ends ? pos : end) - begin));
    begin = pos;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string replace_text(std::string_view text, std::string_view old_text, std::string_view new_text,
                         int64_t max_count) {
  std::string out;
  int64_t count = 0;
  size_t pos = 0;
  const auto more = [&] { return max_count < 0 || count < max_count; };
  if (old_text.empty()) {  // before every character, and at the end
    while (more() && pos <= text.size()) {
      out += new_text;
      ++count;
      if (pos == text.size()) return out;
      const size_t size = unicode::utf8_length(text[pos]);
      out += text.substr(pos, size);
      pos += size;
    }
    return out.append(text.substr(std::min(pos, text.size())));
  }
  while (more()) {
    const size_t at = find_text(text, old_text, pos);
    if (at == std::string_view::npos) break;
    out += text.substr(pos, at - pos);
    out += new_text;
    pos = at + old_text.size();
    ++count;
  }
  return out.append(text.substr(pos));
}

int64_t count_text(std::string_view text, std::string_view part) {
  if (part.empty()) return static_cast<int64_t>(unicode::count_code_points(text)) + 1;
  int64_t count = 0;
  for (size_t at = find_text(text, part); at != std::string_view::npos; at = find_text(text, part, at + part.size()))
    ++count;
  return count;
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (part.empty() || from >= text.size()) return text.find(part, from);
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t rfind_text(std::string_view text, std::string_view part) {
  return spend_work(rfind_cost(text, part)) ? text.rfind(part) : std::string_view::npos;
}

std::string pad_text(std::string_view text, int64_t width, std::string_view fill, Side text_side) {
  const auto size = static_cast<int64_t>(unicode::count_code_points(text));
  const int64_t space = std::max<int64_t>(width - size, 0);
  int64_t left = text_side == Side::kLeft ? 0 : space;
  if (text_side == Side::kBoth) left = space / 2 + (space & width & 1);  // where Python puts the odd one
  std::string out;
  const auto append_fill = [&](int64_t count) {
    if (fill.size() == 1) return void(out.append(static_cast<size_t>(count), fill[0]));
    for (int64_t i = 0; i < count; ++i) out += fill;
  };
  append_fill(left);
  out += text;
  append_fill(space - left);
  return out;
}

std::optional<Int> parse_int_text(std::string_view text, int base) {
  text = strip_text(text, std::nullopt, Side::kBoth);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.size() > 1 && text[0] == '0') {
    const char marker = static_cast<char>(text[1] | 0x20);
    const int marked = marker == 'x' ? 16 : marker == 'o' ? 8 : marker == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      text.remove_prefix(2);
      if (text.starts_with('_')) text.remove_prefix(1);
      base = marked;
    }
  }
  if (base == 0) base = 10;
  const auto digits = without_underscores(text);
  if (!digits || digits->empty()) return std::nullopt;
  Int value = 0;
  for (const char c : *digits) {
    int digit = 99;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) digit = (c | 0x20) - 'a' + 10;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, static_cast<Int>(base), &value) ||
        __builtin_add_overflow(value, Int{digit}, &value))
      return std::nullopt;
  }
  return negative ? -value : value;
}

std::optional<double> parse_float_text(std::string_view text) {
  text = strip_text(text, std::nullopt, Side::kBoth);
  const auto plain = without_underscores(text);
  if (!plain || plain->empty()) return std::nullopt;
  std::string word = to_lower_ascii(*plain);
  const double sign = word.starts_with('-') ? -1.0 : 1.0;
  if (word.starts_with('-') || word.starts_with('+')) word.erase(0, 1);
  if (word == "inf" || word == "infinity") return sign * INFINITY;
  if (word == "nan") return NAN;
  if (word.empty() || word.find_first_not_of("0123456789.e+-") != std::string::npos) return std::nullopt;
  double value = 0;
  const auto result = std::from_chars(word.data(), word.data() + word.size(), value);
  if (result.ec == std::errc::result_out_of_range) value = std::strtod(word.c_str(), nullptr);
  if (result.ec == std::errc::invalid_argument || result.ptr != word.data() + word.size()) return std::nullopt;
  return sign * value;
}

std::optional<bool> classify_text(std::string_view name, std::string_view text) {
  const auto all = [&](bool (*test)(char32_t)) { return !text.empty() && all_codes(text, test); };
  if (name == "isalpha") return all([](char32_t c) { return is_in(c, unicode::kLetters); });
  if (name == "isdecimal") return all([](char32_t c) { return is_in(c, mask_of(Category::kNd)); });
  if (name == "isdigit") return all(is_digit_char);
  if (name == "isnumeric") return all([](char32_t c) { return is_in(c, unicode::kNumbers); });
  if (name == "isalnum") return all([](char32_t c) { return is_in(c, unicode::kLetters | unicode::kNumbers); });
  if (name == "isspace") return all(is_python_space);
  if (name == "isascii") return all_codes(text, [](char32_t c) { return c < 0x80; });
  if (name == "isprintable")
    return string_repr(text).size() == text.size() + 2 && text.find_first_of("\\'") == std::string_view::npos;
  if (name == "isidentifier") {
    size_t pos = 0;
    if (text.empty()) return false;
    const char32_t first = unicode::next_code_point(text, pos);
    return (first == '_' || is_in(first, unicode::kLetters)) &&
           all_codes(text, [](char32_t c) { return unicode::is_word(c); });
  }
  if (name != "islower" && name != "isupper" && name != "istitle") return std::nullopt;
  bool cased = false;
  bool after_cased = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t code = unicode::next_code_point(text, pos);
    const bool upper = is_in(code, kUpperOrTitle);
    const bool lower = is_in(code, mask_of(Category::kLl));
    if (name == "islower" && upper) return false;
    if (name == "isupper" && (lower || is_in(code, mask_of(Category::kLt)))) return false;
    if (name == "istitle" && ((upper && after_cased) || (lower && !after_cased))) return false;
    after_cased = upper || lower;
    cased = cased || after_cased;
  }
  return cased;
}

}  // namespace mortise::jinja
