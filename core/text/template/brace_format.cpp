// '{} {name!r:>5}'.format(...). See format.h.
#include <fmt/core.h>
#include <algorithm>

#include "text/template/format.h"
#include "text/template/interpreter.h"
#include "text/template/number_format.h"
#include "text/template/py_string.h"
#include "text/template/work.h"
#include "text/unicode/utf8.h"

namespace mortise::jinja {
namespace {

constexpr int64_t kMaxFieldNumber = 1'000'000;

bool is_align(char c) { return c == '<' || c == '>' || c == '=' || c == '^'; }

// [[fill]align][sign][#][0][width][grouping][.precision][type]
Result<NumberFormat> parse_spec(std::string_view spec, bool is_text) {
  NumberFormat style;
  style.align = is_text ? '<' : '>';
  size_t pos = 0;
  const auto more = [&] { return pos < spec.size(); };
  const size_t first = more() ? unicode::utf8_length(spec[0]) : 0;
  bool aligned = true;
  if (first > 0 && first < spec.size() && is_align(spec[first])) {
    style.fill = std::string(spec.substr(0, first));
    style.align = spec[first];
    pos = first + 1;
  } else if (more() && is_align(spec[0])) {
    style.align = spec[pos++];
  } else {
    aligned = false;
  }
  if (more() && (spec[pos] == '+' || spec[pos] == '-' || spec[pos] == ' ')) style.sign = spec[pos++];
  if (more() && spec[pos] == '#') style.alternate = spec[pos++] == '#';
  if (more() && spec[pos] == '0') {
    ++pos;
    if (!aligned) {
      style.fill = "0";
      if (!is_text) style.align = '=';
    }
  }
  const auto number = [&]() -> Result<int64_t> {
    int64_t value = 0;
    while (more() && spec[pos] >= '0' && spec[pos] <= '9')
      value = std::min(value * 10 + (spec[pos++] - '0'), kMaxFieldNumber + 1);
    if (value > kMaxFieldNumber) return type_error("Too many decimal digits in format string");
    return value;
  };
  style.width = TRY(number());
  if (more() && (spec[pos] == ',' || spec[pos] == '_')) style.group = spec[pos++];
  if (more() && spec[pos] == '.') {
    ++pos;
    if (!more() || spec[pos] < '0' || spec[pos] > '9') return type_error("Format specifier missing precision");
    style.precision = TRY(number());
  }
  if (more()) style.type = spec[pos++];
  if (more()) return type_error(fmt::format("Invalid format specifier '{}'", spec));
  return style;
}

class BraceFormat {
 public:
  BraceFormat(Interpreter& interpreter, const CallArgs& args) : interpreter_(interpreter), args_(args) {}

  Result<std::string> run(std::string_view format, int depth) {
    if (depth > 2) return type_error("Max string recursion exceeded");
    std::string out;
    for (size_t pos = 0; pos < format.size();) {
      const char c = format[pos++];
      const bool doubled = pos < format.size() && format[pos] == c;
      if (c != '{' && c != '}') {
        out += c;
      } else if (doubled) {
        out += c;
        ++pos;
      } else if (c == '}') {
        return type_error("Single '}' encountered in format string");
      } else {
        const size_t end = field_end(format, pos);
        if (end == std::string_view::npos) return type_error("Single '{' encountered in format string");
        const std::string made = TRY(field(format.substr(pos, end - pos), depth));
        TRY(interpreter_.charge(made.size()));
        TRY(use_work(made.size() + (end - pos)));
        TRY(text_may_have(out.size() + made.size()));
        out += made;
        pos = end + 1;
      }
    }
    return out;
  }

 private:
  static size_t field_end(std::string_view format, size_t pos) {
    int open = 1;
    for (; pos < format.size(); ++pos) {
      if (format[pos] == '{') ++open;
      if (format[pos] == '}' && --open == 0) return pos;
    }
    return std::string_view::npos;
  }

  Result<std::string> field(std::string_view text, int depth) {
    size_t end = 0;
    bool in_brackets = false;
    while (end < text.size() && (in_brackets || (text[end] != '!' && text[end] != ':'))) {
      if (text[end] == '[') in_brackets = true;
      if (text[end] == ']') in_brackets = false;
      ++end;
    }
    Value value = TRY(look_up(text.substr(0, end)));
    std::string_view rest = text.substr(end);
    if (rest.starts_with('!')) {
      const char conversion = rest.size() > 1 ? rest[1] : '\0';
      if (conversion == 's') {
        value = Value(TRY(to_text(value)));
      } else if (conversion == 'r' || conversion == 'a') {
        value = Value(TRY(to_repr(value)));
      } else {
        return type_error(fmt::format("Unknown conversion specifier '{}'", rest.substr(1, 1)));
      }
      rest.remove_prefix(2);
      if (!rest.empty() && rest[0] != ':') return type_error("expected ':' after conversion specifier");
    }
    std::string spec;
    if (rest.starts_with(':')) spec = TRY(run(rest.substr(1), depth + 1));
    return format_value(value, spec);
  }

  // "0", "name", "name.attribute[item]"; nothing: the next positional argument.
  Result<Value> look_up(std::string_view path) {
    size_t end = path.find_first_of(".[");
    const std::string_view name = path.substr(0, end);
    Value value;
    const bool number =
        !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (name.empty() || number) {
      if (number ? next_ > 0 : next_ < 0)
        return type_error("cannot switch between automatic field numbering and manual field specification");
      const size_t index =
          number ? static_cast<size_t>(parse_int_text(name.substr(0, 9), 10).value_or(0)) : static_cast<size_t>(next_);
      next_ = number ? -1 : next_ + 1;
      if (index >= args_.positional.size())
        return type_error(fmt::format("Replacement index {} out of range for positional args tuple", index));
      value = args_.positional[index];
    } else {
      const Value* found = args_.keyword_value(name);
      if (found == nullptr) return type_error(string_repr(name));
      value = *found;
    }
    while (end != std::string_view::npos && end < path.size()) {
      if (path[end] == '.') {
        const size_t stop = std::min(path.find_first_of(".[", end + 1), path.size());
        value = TRY(interpreter_.attribute(value, std::string(path.substr(end + 1, stop - end - 1))));
        end = stop;
      } else {
        const size_t stop = path.find(']', end);
        if (stop == std::string_view::npos) return type_error("Missing ']' in format string");
        const std::string_view key = path.substr(end + 1, stop - end - 1);
        const auto index = classify_text("isdigit", key).value_or(false) ? parse_int_text(key, 10) : std::nullopt;
        value = TRY(interpreter_.item(value, index ? Value(*index) : Value(key)));
        end = stop + 1;
      }
    }
    return value;
  }

  Interpreter& interpreter_;
  const CallArgs& args_;
  int64_t next_ = 0;  // position of the next {}; -1: fields have numbers
};

}  // namespace

Result<std::string> format_value(const Value& value, std::string_view spec) {
  if (spec.empty()) return to_text(value);
  if (value.is(Kind::kString)) {
    const NumberFormat style = TRY(parse_spec(spec, true));
    if (style.type != '\0' && style.type != 's') {
      return type_error(fmt::format("Unknown format code '{}' for object of type 'str'", std::string(1, style.type)));
    }
    return padded_text(value.string(), style);
  }
  if (!value.is_number())
    return type_error(fmt::format("unsupported format string passed to {}.__format__", type_name(value)));
  const NumberFormat style = TRY(parse_spec(spec, false));
  if (value.is_integral() &&
      (style.type == '\0' || std::string_view("dnxXob").find(style.type) != std::string_view::npos)) {
    if (style.precision >= 0) return type_error("Precision not allowed in integer format specifier");
    if (value.is(Kind::kBool) && style.type == '\0') return padded_text(TRY(to_text(value)), style);
    return format_integer(value.integer(), style);
  }
  if (style.type != '\0' && std::string_view("eEfFgGn%").find(style.type) == std::string_view::npos) {
    return type_error(
        fmt::format("Unknown format code '{}' for object of type '{}'", std::string(1, style.type), type_name(value)));
  }
  return format_double(value.number(), style);
}

Result<std::string> brace_format(Interpreter& interpreter, std::string_view format, const CallArgs& args) {
  return BraceFormat(interpreter, args).run(format, 0);
}

}  // namespace mortise::jinja
