// Methods of strings. See methods.h.
#include <fmt/core.h>
#include <algorithm>

#include "text/template/format.h"
#include "text/template/interpreter.h"
#include "text/template/methods.h"
#include "text/template/py_string.h"
#include "text/template/work.h"
#include "text/unicode/utf8.h"

namespace mortise::jinja {
namespace {

using Args = const CallArgs&;
using Name = std::string_view;

// Optional text argument; None is the same as no argument.
Result<std::optional<std::string>> optional_text(const BoundArgs& args, size_t index) {
  if (!args.has(index) || args[index].is(Kind::kNone)) return std::optional<std::string>();
  return std::optional<std::string>(TRY(args.text(index, "")));
}

constexpr size_t kTextItemBytes = sizeof(Value) + kObjectBytes;  // size of a text in a list

Value text_list(const std::vector<std::string>& parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string& part : parts) items.emplace_back(part);
  return Value::list(std::move(items));
}

// The text between the optional bounds start and stop, and the byte where it begins.
Result<std::pair<size_t, std::string_view>> window(const Value& self, const BoundArgs& args, size_t first) {
  const std::string& text = self.string();
  const auto size = static_cast<int64_t>(unicode::count_code_points(text));
  const auto place = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
  const bool no_start = !args.has(first) || args[first].is(Kind::kNone);
  const bool no_stop = !args.has(first + 1) || args[first + 1].is(Kind::kNone);
  const int64_t raw_start = no_start ? 0 : TRY(args.integer(first, 0));
  const int64_t stop = no_stop ? size : place(TRY(args.integer(first + 1, 0)));
  if (raw_start > size || place(raw_start) > stop) return std::pair<size_t, std::string_view>(std::string::npos, "");
  const size_t begin = unicode::byte_offset_of(text, static_cast<size_t>(place(raw_start)));
  const size_t end = unicode::byte_offset_of(text, static_cast<size_t>(stop));
  return std::pair<size_t, std::string_view>(begin, std::string_view(text).substr(begin, end - begin));
}

Result<Value> simple(Interpreter& /*interpreter*/, Name name, const Value& self, Args args) {
  TRY(BoundArgs::bind(name, args, {}, 0));
  const std::string& text = self.string();
  if (name == "upper") return Value(upper_text(text));
  if (name == "title") return Value(title_text(text));
  if (name == "capitalize") return Value(capitalize_text(text));
  if (name == "swapcase") return Value(swapcase_text(text));
  return Value(lower_text(text));  // lower, casefold
}

Result<Value> classify(Interpreter& /*interpreter*/, Name name, const Value& self, Args args) {
  TRY(BoundArgs::bind(name, args, {}, 0));
  return Value(classify_text(name, self.string()).value_or(false));
}

Result<Value> strip(Interpreter& /*interpreter*/, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"chars"}, 0));
  const auto chars = TRY(optional_text(bound, 0));
  const Side side = name == "lstrip" ? Side::kLeft : name == "rstrip" ? Side::kRight : Side::kBoth;
  return Value(strip_text(self.string(), chars, side));
}

Result<Value> split(Interpreter& interpreter, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"sep", "maxsplit"}, 0));
  const auto separator = TRY(optional_text(bound, 0));
  const int64_t max_splits = TRY(bound.integer(1, -1));
  const auto parts = TRY(split_text(self.string(), separator, max_splits, name == "rsplit"));
  TRY(interpreter.charge(self.string().size() + parts.size() * kTextItemBytes));
  TRY(use_work(8 * parts.size()));
  return text_list(parts);
}

Result<Value> splitlines(Interpreter& interpreter, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"keepends"}, 0));
  const bool keep_ends = TRY(bound.flag(0, false));
  const auto lines = TRY(split_lines(self.string(), keep_ends));
  TRY(interpreter.charge(self.string().size() + lines.size() * kTextItemBytes));
  TRY(use_work(8 * lines.size()));
  return text_list(lines);
}

Result<Value> partition(Interpreter& /*interpreter*/, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"sep"}, 1));
  const std::string separator = TRY(bound.text(0, ""));
  if (separator.empty()) return type_error("empty separator");
  const std::string& text = self.string();
  const size_t at = name == "rpartition" ? rfind_text(text, separator) : find_text(text, separator);
  if (at == std::string::npos) {
    if (name == "rpartition") return Value::tuple({"", "", self});
    return Value::tuple({self, "", ""});
  }
  return Value::tuple({text.substr(0, at), separator, text.substr(at + separator.size())});
}

Result<Value> starts_or_ends(Interpreter& /*interpreter*/, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"prefix", "start", "end"}, 1));
  const auto [begin, text] = TRY(window(self, bound, 1));
  std::vector<Value> wanted = {bound[0]};
  if (bound[0].is(Kind::kTuple)) wanted = bound[0].tuple_value().items;
  for (const Value& part : wanted) {
    if (part.is(Kind::kUndefined)) return undefined_error(part);
    if (!part.is(Kind::kString)) {
      return type_error(fmt::format("{} first arg must be str or a tuple of str, not {}", name, type_name(part)));
    }
    if (begin == std::string::npos) continue;
    if (name == "startswith" ? text.starts_with(part.string()) : text.ends_with(part.string())) return Value(true);
  }
  return Value(false);
}

Result<Value> find(Interpreter& /*interpreter*/, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"sub", "start", "end"}, 1));
  const std::string part = TRY(bound.text(0, ""));
  const auto [begin, text] = TRY(window(self, bound, 1));
  if (name == "count") return Value(begin == std::string::npos ? int64_t{0} : count_text(text, part));
  const bool from_right = name.starts_with('r');
  const size_t at = begin == std::string::npos ? begin : from_right ? rfind_text(text, part) : find_text(text, part);
  if (at == std::string::npos) {
    if (name.ends_with("index")) return type_error("substring not found");
    return Value(-1);
  }
  return Value(unicode::count_code_points(std::string_view(self.string()).substr(0, begin + at)));
}

Result<Value> replace(Interpreter& interpreter, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"old", "new", "count"}, 2));
  const std::string old_text = TRY(bound.text(0, ""));
  const std::string new_text = TRY(bound.text(1, ""));
  const int64_t count = TRY(bound.integer(2, -1));
  TRY(interpreter.charge_text(self.string().size() +
                              static_cast<size_t>(count_text(self.string(), old_text)) * new_text.size()));
  return Value(replace_text(self.string(), old_text, new_text, count));
}

Result<Value> join(Interpreter& interpreter, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"iterable"}, 1));
  const auto items = TRY(items_of(bound[0]));
  size_t size = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is(Kind::kString)) {
      return type_error(fmt::format("sequence item {}: expected str instance, {} found", i, type_name(items[i])));
    }
    size += items[i].string().size() + (i > 0 ? self.string().size() : 0);
  }
  TRY(interpreter.charge_text(size));
  std::string out;
  out.reserve(size);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += self.string();
    out += items[i].string();
  }
  return Value(std::move(out));
}

Result<Value> pad(Interpreter& interpreter, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"width", "fillchar"}, 1));
  const int64_t width = TRY(bound.integer(0, 0));
  const std::string fill = TRY(bound.text(1, " "));
  if (unicode::count_code_points(fill) != 1) return type_error("The fill character must be exactly one character long");
  const auto most = static_cast<size_t>(std::max<int64_t>(width, 0));
  TRY(text_may_have(most));
  TRY(interpreter.charge_text(most * fill.size()));
  const Side side = name == "ljust" ? Side::kLeft : name == "rjust" ? Side::kRight : Side::kBoth;
  return Value(pad_text(self.string(), width, fill, side));
}

Result<Value> zfill(Interpreter& interpreter, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"width"}, 1));
  const int64_t width = TRY(bound.integer(0, 0));
  TRY(interpreter.charge_text(static_cast<size_t>(std::max<int64_t>(width, 0))));
  const std::string& text = self.string();
  const bool sign = text.starts_with('-') || text.starts_with('+');
  const std::string body =
      pad_text(std::string_view(text).substr(sign ? 1 : 0), width - (sign ? 1 : 0), "0", Side::kRight);
  return Value((sign ? text.substr(0, 1) : "") + body);
}

Result<Value> remove_affix(Interpreter& /*interpreter*/, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"affix"}, 1));
  const std::string affix = TRY(bound.text(0, ""));
  const std::string& text = self.string();
  if (name == "removeprefix") return text.starts_with(affix) ? Value(text.substr(affix.size())) : self;
  return text.ends_with(affix) ? Value(text.substr(0, text.size() - affix.size())) : self;
}

Result<Value> expand_tabs(Interpreter& interpreter, Name name, const Value& self, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"tabsize"}, 0));
  const int64_t width = TRY(bound.integer(0, 8));
  std::string out;
  int64_t column = 0;
  for (const char c : self.string()) {
    if (c == '\t') {
      const int64_t count = width > 0 ? width - column % width : 0;
      TRY(interpreter.charge_text(static_cast<size_t>(count)));
      TRY(text_may_have(out.size() + static_cast<size_t>(count)));
      out.append(static_cast<size_t>(count), ' ');
      column += count;
    } else {
      out += c;
      column = c == '\n' || c == '\r' ? 0 : column + ((static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0);
    }
  }
  return Value(std::move(out));
}

Result<Value> format(Interpreter& interpreter, Name name, const Value& self, Args args) {
  if (name == "format") return Value(TRY(brace_format(interpreter, self.string(), args)));
  const BoundArgs bound = TRY(BoundArgs::bind(name, args, {"mapping"}, 1));
  if (!bound[0].is(Kind::kDict)) return type_error("format_map() needs a mapping, not " + type_name(bound[0]));
  CallArgs fields;
  for (const auto& [key, value] : bound[0].dict().items()) {
    TRY(use_work(work_over(key)));
    if (key.is(Kind::kString)) fields.keyword.emplace_back(key.string(), value);
  }
  return Value(TRY(brace_format(interpreter, self.string(), fields)));
}

}  // namespace

MethodFunction find_string_method(std::string_view name) {
  static constexpr std::pair<std::string_view, MethodFunction> kMethods[] = {{"capitalize", simple},
                                                                             {"casefold", simple},
                                                                             {"center", pad},
                                                                             {"count", find},
                                                                             {"endswith", starts_or_ends},
                                                                             {"expandtabs", expand_tabs},
                                                                             {"find", find},
                                                                             {"format", format},
                                                                             {"format_map", format},
                                                                             {"index", find},
                                                                             {"isalnum", classify},
                                                                             {"isalpha", classify},
                                                                             {"isascii", classify},
                                                                             {"isdecimal", classify},
                                                                             {"isdigit", classify},
                                                                             {"isidentifier", classify},
                                                                             {"islower", classify},
                                                                             {"isnumeric", classify},
                                                                             {"isprintable", classify},
                                                                             {"isspace", classify},
                                                                             {"istitle", classify},
                                                                             {"isupper", classify},
                                                                             {"join", join},
                                                                             {"ljust", pad},
                                                                             {"lower", simple},
                                                                             {"lstrip", strip},
                                                                             {"partition", partition},
                                                                             {"removeprefix", remove_affix},
                                                                             {"removesuffix", remove_affix},
                                                                             {"replace", replace},
                                                                             {"rfind", find},
                                                                             {"rindex", find},
                                                                             {"rjust", pad},
                                                                             {"rpartition", partition},
                                                                             {"rsplit", split},
                                                                             {"rstrip", strip},
                                                                             {"split", split},
                                                                             {"splitlines", splitlines},
                                                                             {"startswith", starts_or_ends},
                                                                             {"strip", strip},
                                                                             {"swapcase", simple},
                                                                             {"title", simple},
                                                                             {"upper", simple},
                                                                             {"zfill", zfill}};
  for (const auto& [known, function] : kMethods) {
    if (known == name) return function;
  }
  return nullptr;
}

}  // namespace mortise::jinja
