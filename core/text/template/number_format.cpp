// See number_format.h.
#include "text/template/number_format.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

#include "text/template/py_string.h"
#include "text/unicode/utf8.h"

namespace mortise::jinja {
namespace {

// Separators between every `every` digits of the whole part, counted from the right.
std::string grouped(const std::string& digits, char separator, size_t every) {
  if (separator == '\0') return digits;
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out += separator;
    out += digits[i];
  }
  return out;
}

std::string assembled(bool negative, const std::string& prefix, const std::string& body, const NumberFormat& style) {
  std::string head = negative ? "-" : style.sign == '+' ? "+" : style.sign == ' ' ? " " : "";
  head += prefix;
  if (style.align == '=') {
    const auto used = static_cast<int64_t>(unicode::count_code_points(head) + unicode::count_code_points(body));
    std::string out = head;
    for (int64_t i = used; i < style.width; ++i) out += style.fill;
    return out + body;
  }
  const Side side = style.align == '<' ? Side::kLeft : style.align == '^' ? Side::kBoth : Side::kRight;
  if (side != Side::kBoth) return pad_text(head + body, style.width, style.fill, side);
  const auto size = static_cast<int64_t>(unicode::count_code_points(head + body));
  const int64_t left = std::max<int64_t>(style.width - size, 0) / 2;
  return pad_text(pad_text(head + body, size + left, style.fill, Side::kRight), style.width, style.fill, Side::kLeft);
}

std::string printf_double(double value, char type, int64_t precision, bool alternate) {
  char format[8];
  std::snprintf(format, sizeof format, alternate ? "%%#.*%c" : "%%.*%c", type);
  std::string out(400 + static_cast<size_t>(precision), '\0');
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const int size = std::snprintf(out.data(), out.size(), format, static_cast<int>(precision), value);
#pragma GCC diagnostic pop
  out.resize(static_cast<size_t>(std::max(size, 0)));
  return out;
}

}  // namespace

std::string padded_text(std::string_view text, const NumberFormat& style) {
  if (style.precision >= 0) text = text.substr(0, unicode::byte_offset_of(text, static_cast<size_t>(style.precision)));
  const Side side = style.align == '<' ? Side::kLeft : style.align == '^' ? Side::kBoth : Side::kRight;
  if (side != Side::kBoth) return pad_text(text, style.width, style.fill, side);
  const auto size = static_cast<int64_t>(unicode::count_code_points(text));
  const int64_t left = std::max<int64_t>(style.width - size, 0) / 2;
  return pad_text(pad_text(text, size + left, style.fill, Side::kRight), style.width, style.fill, Side::kLeft);
}

Result<std::string> format_integer(Int value, const NumberFormat& style) {
  const bool negative = value < 0;
  auto rest = negative ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  const unsigned base = style.type == 'x' || style.type == 'X' ? 16
                        : style.type == 'o'                    ? 8
                        : style.type == 'b'                    ? 2
                                                               : 10;
  std::string digits;
  do {
    digits += "0123456789abcdef"[static_cast<unsigned>(rest % base)];
    rest /= base;
  } while (rest != 0);
  std::reverse(digits.begin(), digits.end());
  if (style.precision > static_cast<int64_t>(digits.size())) {
    digits.insert(0, static_cast<size_t>(style.precision) - digits.size(), '0');
  }
  const char* prefix = base == 16 ? (style.type == 'X' ? "0X" : "0x") : base == 8 ? "0o" : base == 2 ? "0b" : "";
  if (style.type == 'X') {
    std::transform(digits.begin(), digits.end(), digits.begin(),
                   [](char c) { return static_cast<char>(std::toupper(c)); });
  }
  return assembled(negative, style.alternate ? prefix : "", grouped(digits, style.group, base == 10 ? 3 : 4), style);
}

Result<std::string> format_double(double value, const NumberFormat& style) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  const double size = std::fabs(value);
  std::string body;
  const bool percent = style.type == '%';
  if (style.precision > 10000) return type_error("precision too big");
  if (!std::isfinite(value)) {
    body = std::isnan(value) ? "nan" : "inf";
    if (std::isupper(static_cast<unsigned char>(style.type)) != 0) body = std::isnan(value) ? "NAN" : "INF";
  } else if (style.type == '\0') {
    body = style.precision < 0 ? float_text(size)
                               : printf_double(size, 'g', std::max<int64_t>(style.precision, 1), style.alternate);
    if (style.precision >= 0 && body.find_first_of(".e") == std::string::npos) body += ".0";
  } else {
    const char type = percent ? 'f' : style.type == 'n' ? 'g' : style.type;
    int64_t precision = style.precision < 0 ? 6 : style.precision;
    if ((type == 'g' || type == 'G') && precision == 0) precision = 1;
    body = printf_double(percent ? size * 100 : size, type, precision, style.alternate);
  }
  size_t whole = 0;
  while (whole < body.size() && std::isdigit(static_cast<unsigned char>(body[whole])) != 0) ++whole;
  body = grouped(body.substr(0, whole), style.group, 3) + body.substr(whole);
  if (percent) body += '%';
  return assembled(negative, "", body, style);
}

}  // namespace mortise::jinja
