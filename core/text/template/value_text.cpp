// How values print: Python's str() and repr().
#include <fmt/core.h>
#include <array>
#include <charconv>
#include <cmath>

#include "foundation/base/text.h"
#include "text/template/callable.h"
#include "text/template/value.h"
#include "text/template/work.h"
#include "text/unicode/properties.h"
#include "text/unicode/utf8.h"

namespace mortise::jinja {
namespace {

constexpr int kMaxReprDepth = 200;

bool is_printable(char32_t code) {
  using unicode::Category;
  constexpr unicode::CategoryMask kHidden = unicode::kSeparators | unicode::kOthers;
  return code == ' ' || !unicode::is_in(code, kHidden);
}

// The text of an item. Each level copies a text inside once, and each copy counts.
Result<> append_repr(const Value& value, int depth, std::string& out) {
  const std::string text = TRY(to_repr(value, depth + 1));
  TRY(use_work(text.size() + 1));
  TRY(text_may_have(out.size() + text.size()));
  out += text;
  return {};
}

Result<std::string> join_reprs(const std::vector<Value>& items, std::string_view open, std::string_view close,
                               int depth) {
  std::string out(open);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    TRY(append_repr(items[i], depth, out));
  }
  out += close;
  return out;
}

Result<std::string> dict_repr(const Dict& dict, int depth) {
  std::string out = "{";
  for (const auto& [key, value] : dict.items()) {
    if (out.size() > 1) out += ", ";
    TRY(append_repr(key, depth, out));
    out += ": ";
    TRY(append_repr(value, depth, out));
  }
  out += "}";
  return out;
}

}  // namespace

std::string int_text(Int value) {
  const bool negative = value < 0;
  auto rest = negative ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  std::string out;
  do {
    out.insert(out.begin(), static_cast<char>('0' + static_cast<int>(rest % 10)));
    rest /= 10;
  } while (rest != 0);
  return negative ? "-" + out : out;
}

// Shortest digits that read back the same; exponents from 1e16 up and below 1e-4, with two digits at least.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  std::string_view text(buffer.data(), static_cast<size_t>(result.ptr - buffer.data()));
  std::string out;
  if (text.starts_with('-')) {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  const int exponent = std::atoi(text.data() + e + 1);
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (count > 1) out += "." + digits.substr(1);
    out += exponent < 0 ? "e-" : "e+";
    const std::string power = std::to_string(std::abs(exponent));
    return out + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0) return fmt::format("{}0.{}{}", out, std::string(static_cast<size_t>(-exponent - 1), '0'), digits);
  if (count <= exponent + 1)
    return fmt::format("{}{}{}.0", out, digits, std::string(static_cast<size_t>(exponent + 1 - count), '0'));
  return fmt::format("{}{}.{}", out, digits.substr(0, static_cast<size_t>(exponent + 1)),
                     digits.substr(static_cast<size_t>(exponent + 1)));
}

std::string string_repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char mark = has_single && !has_double ? '"' : '\'';
  std::string out;
  out.reserve(text.size() + 2);
  out += mark;
  char buffer[16];
  const auto stands_for_itself = [mark](char c) { return c >= ' ' && c <= '~' && c != mark && c != '\\'; };
  // A text beyond the limit of a rendering ends it, so the rest of it is not needed (escapes are up to four times as long).
  for (size_t pos = 0; pos < text.size() && out.size() <= max_text_bytes;) {
    const size_t start = pos;
    while (pos < text.size() && stands_for_itself(text[pos])) ++pos;
    if (pos > start) {  // most texts are such letters from end to end
      out.append(text, start, pos - start);
      continue;
    }
    const char32_t code = unicode::next_code_point(text, pos);
    if (code == static_cast<char32_t>(mark) || code == '\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (is_printable(code)) {
      append_utf8(out, code);
    } else {
      const char* format = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(buffer, sizeof buffer, format, static_cast<unsigned>(code));
      out += buffer;
    }
  }
  out += mark;
  return out;
}

Result<std::string> to_text(const Value& value) {
  if (value.is(Kind::kString)) return value.string();
  if (value.is(Kind::kUndefined)) return std::string();
  return to_repr(value);
}

Result<std::string> to_repr(const Value& value, int depth) {
  if (depth > kMaxReprDepth) return type_error("maximum recursion depth exceeded while printing a value");
  switch (value.kind()) {
    case Kind::kUndefined:
      return std::string("Undefined");
    case Kind::kNone:
      return std::string("None");
    case Kind::kBool:
      return std::string(value.boolean() ? "True" : "False");
    case Kind::kInt:
      return int_text(value.integer());
    case Kind::kFloat:
      return float_text(value.number());
    case Kind::kString:
      return string_repr(value.string());
    case Kind::kList:
      return join_reprs(value.list_value().items, "[", "]", depth);
    case Kind::kTuple: {
      const auto& items = value.tuple_value().items;
      return join_reprs(items, "(", items.size() == 1 ? ",)" : ")", depth);
    }
    case Kind::kDict:
      return dict_repr(value.dict(), depth);
    case Kind::kView:
      return join_reprs(value.view().items, value.view().type_name + "([", "])", depth);
    case Kind::kIterator:
      return std::string("<generator object>");
    case Kind::kRange: {
      const Range& range = value.range();
      std::string out = fmt::format("range({}, {}", range.start, range.stop);
      if (range.step != 1) out += ", " + std::to_string(range.step);
      return out + ")";
    }
    case Kind::kNamespace: {
      Dict dict;
      for (const auto& [name, item] : value.name_space().values) TRY(dict.set(name, item));
      return fmt::format("<Namespace {}>", TRY(dict_repr(dict, depth)));
    }
    case Kind::kCallable:
      return value.callable().repr();
    case Kind::kLoop:
      return std::string("<LoopContext>");
  }
  return std::string();
}

}  // namespace mortise::jinja
