// Filters that give text. See filters.h. Most accept any value and work on str(value), so `none | trim` is "None".
#include <fmt/core.h>
#include <algorithm>

#include "foundation/base/text.h"
#include "text/template/filters.h"
#include "text/template/format.h"
#include "text/template/interpreter.h"
#include "text/template/json_text.h"
#include "text/template/lexer.h"
#include "text/template/py_string.h"
#include "text/template/work.h"
#include "text/unicode/properties.h"
#include "text/unicode/utf8.h"

namespace mortise::jinja {
namespace {

using Args = const CallArgs&;

Result<Value> lower(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("lower", args, {}, 0));
  return Value(lower_text(TRY(to_text(input))));
}

Result<Value> upper(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("upper", args, {}, 0));
  return Value(upper_text(TRY(to_text(input))));
}

Result<Value> capitalize(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("capitalize", args, {}, 0));
  return Value(capitalize_text(TRY(to_text(input))));
}

// Words begin behind white space, a hyphen or an opening bracket; the rest of each is in lower case.
Result<Value> title(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("title", args, {}, 0));
  const std::string text = TRY(to_text(input));
  std::string out;
  size_t begin = 0;
  const auto flush = [&](size_t end) {
    if (end <= begin) return;
    const std::string_view word = std::string_view(text).substr(begin, end - begin);
    const size_t first = unicode::utf8_length(word[0]);
    out += upper_text(word.substr(0, first));
    out += lower_text(word.substr(first));
  };
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    const char32_t code = unicode::next_code_point(text, pos);
    if (!is_python_space(code) &&
        std::string_view("-({[<").find(static_cast<char>(code < 0x80 ? code : 'x')) == std::string_view::npos)
      continue;
    flush(at);
    out += std::string_view(text).substr(at, pos - at);
    begin = pos;
  }
  flush(text.size());
  return Value(std::move(out));
}

Result<Value> trim_filter(Interpreter& /*interpreter*/, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_trim", args, {"chars"}, 0));
  const std::string text = TRY(to_text(input));
  std::optional<std::string> chars;
  if (bound.has(0) && !bound[0].is(Kind::kNone)) chars = TRY(bound.text(0, ""));
  return Value(strip_text(text, chars, Side::kBoth));
}

Result<Value> replace_filter(Interpreter& interpreter, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_replace", args, {"old", "new", "count"}, 2));
  const std::string text = TRY(to_text(input));
  const std::string old_text = TRY(to_text(bound[0]));
  const std::string new_text = TRY(to_text(bound[1]));
  const bool all = !bound.has(2) || bound[2].is(Kind::kNone);
  const int64_t count = all ? -1 : TRY(bound.integer(2, -1));
  TRY(interpreter.charge_text(text.size() + static_cast<size_t>(count_text(text, old_text)) * new_text.size()));
  return Value(replace_text(text, old_text, new_text, count));
}

Result<Value> string(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("string", args, {}, 0));
  return Value(TRY(to_text(input)));
}

Result<Value> tojson(Interpreter& interpreter, const Value& input, Args args) {
  const BoundArgs bound =
      TRY(BoundArgs::bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0));
  JsonStyle style;
  style.ensure_ascii = TRY(bound.flag(0, false));
  style.sort_keys = TRY(bound.flag(3, false));
  if (bound.has(1) && !bound[1].is(Kind::kNone)) {
    style.indent = bound[1].is(Kind::kString)
                       ? bound[1].string()
                       : std::string(static_cast<size_t>(std::clamp<int64_t>(TRY(bound.integer(1, 0)), 0, 1000)), ' ');
    style.item_separator = ",";
  }
  if (bound.has(2) && !bound[2].is(Kind::kNone)) {
    const auto parts = TRY(items_of(bound[2]));
    if (parts.size() != 2 || !parts[0].is(Kind::kString) || !parts[1].is(Kind::kString))
      return type_error("separators must be two strings");
    style.item_separator = parts[0].string();
    style.key_separator = parts[1].string();
  }
  std::string text = TRY(json_text(input, style));
  TRY(interpreter.charge_text(text.size()));
  return Value(std::move(text));
}

Result<Value> indent(Interpreter& interpreter, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_indent", args, {"width", "first", "blank"}, 0));
  std::string space(4, ' ');
  if (bound.has(0)) {
    space = bound[0].is(Kind::kString)
                ? bound[0].string()
                : std::string(static_cast<size_t>(std::clamp<int64_t>(TRY(bound.integer(0, 4)), 0, 10000)), ' ');
  }
  if (input.is(Kind::kUndefined)) return undefined_error(input);
  if (!input.is(Kind::kString))
    return type_error(fmt::format("unsupported operand type(s) for +=: '{}' and 'str'", type_name(input)));
  const bool blank = TRY(bound.flag(2, false));
  const auto lines = TRY(split_lines(input.string() + "\n", false));
  TRY(interpreter.charge_text(input.string().size() + lines.size() * space.size()));
  TRY(interpreter.charge(lines.size(), sizeof(std::string)));
  std::string out = TRY(bound.flag(1, false)) ? space : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    if (i > 0 && (blank || !lines[i].empty())) out += space;
    out += lines[i];
  }
  return Value(std::move(out));
}

Result<Value> truncate(Interpreter& /*interpreter*/, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_truncate", args, {"length", "killwords", "end", "leeway"}, 0));
  const std::string end = TRY(bound.text(2, "..."));
  const int64_t length = TRY(bound.integer(0, 255));
  const int64_t leeway = bound.has(3) && !bound[3].is(Kind::kNone) ? TRY(bound.integer(3, 5)) : 5;
  const auto end_size = static_cast<int64_t>(unicode::count_code_points(end));
  if (length < end_size) return type_error(fmt::format("expected length >= {}, got {}", end_size, length));
  if (leeway < 0) return type_error("expected leeway >= 0, got " + std::to_string(leeway));
  if (static_cast<int64_t>(TRY(length_of(input))) <= length + leeway) return input;
  if (!input.is(Kind::kString)) return type_error("only text can be truncated, not " + type_name(input));
  std::string kept =
      input.string().substr(0, unicode::byte_offset_of(input.string(), static_cast<size_t>(length - end_size)));
  if (!TRY(bound.flag(1, false))) kept = kept.substr(0, std::min(kept.rfind(' '), kept.size()));
  return Value(kept + end);
}

Result<Value> center(Interpreter& interpreter, const Value& input, Args args) {
  const BoundArgs bound = TRY(BoundArgs::bind("do_center", args, {"width"}, 0));
  const int64_t width = TRY(bound.integer(0, 80));
  TRY(interpreter.charge_text(static_cast<size_t>(std::max<int64_t>(width, 0))));
  return Value(pad_text(TRY(to_text(input)), width, " ", Side::kBoth));
}

Result<Value> escape(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("escape", args, {}, 0));
  std::string out;
  for (const char c : TRY(to_text(input))) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return Value(std::move(out));
}

std::string url_quoted(std::string_view text, bool in_query) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-' || c == '_' || c == '.' || c == '~' || (c == '/' && !in_query)) {
      out += c;
    } else if (c == ' ' && in_query) {
      out += '+';
    } else {
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out;
}

Result<Value> urlencode(Interpreter& interpreter, const Value& input, Args args) {
  TRY(BoundArgs::bind("do_urlencode", args, {}, 0));
  std::vector<Value> pairs;
  if (input.is(Kind::kDict)) {
    for (const auto& [key, value] : input.dict().items()) pairs.push_back(Value::tuple({key, value}));
  } else {
    auto items = items_of(input);
    if (input.is(Kind::kString) || !items.ok()) return Value(url_quoted(TRY(to_text(input)), false));
    pairs = *std::move(items);
  }
  std::string out;
  for (const Value& pair : pairs) {
    TRY(use_work(kCallWork));
    const auto parts = TRY(items_of(pair));
    if (parts.size() != 2)
      return type_error(fmt::format("not enough values to unpack (expected 2, got {})", parts.size()));
    if (!out.empty()) out += '&';
    const std::string key = TRY(to_text(parts[0]));
    const std::string value = TRY(to_text(parts[1]));
    TRY(interpreter.charge(3 * (key.size() + value.size())));
    TRY(use_work(4 * (key.size() + value.size())));
    TRY(text_may_have(out.size() + 3 * (key.size() + value.size())));
    out += fmt::format("{}={}", url_quoted(key, true), url_quoted(value, true));
  }
  return Value(std::move(out));
}

Result<Value> wordcount(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("do_wordcount", args, {}, 0));
  const std::string text = TRY(to_text(input));
  int64_t count = 0;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t code = unicode::next_code_point(text, pos);
    const bool word = unicode::is_in(code, unicode::kLetters | unicode::kNumbers) || code == '_';
    if (word && !inside) ++count;
    inside = word;
  }
  return Value(count);
}

Result<Value> format_filter(Interpreter& /*interpreter*/, const Value& input, Args args) {
  if (!args.positional.empty() && !args.keyword.empty()) {
    return type_error("can't handle positional and keyword arguments at the same time");
  }
  const std::string text = TRY(to_text(input));
  if (args.keyword.empty()) return Value(TRY(percent_format(text, Value::tuple(args.positional))));
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, value] : args.keyword) TRY(dict->set(Value(key), value));
  return Value(TRY(percent_format(text, Value(std::shared_ptr<const Dict>(std::move(dict))))));
}

// The text without everything from `open` to the next `close`, both included. An `open` without a `close` remains.
std::string without_ranges(std::string_view text, std::string_view open, std::string_view close) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (size_t at = text.find(open); at != std::string_view::npos; at = text.find(open, done)) {
    const size_t end = text.find(close, at);
    if (end == std::string_view::npos) break;
    out += text.substr(done, at - done);
    done = end + close.size();
  }
  return out += text.substr(done);
}

// White space off both ends, and one space for each run of it inside.
std::string with_single_spaces(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const bool space = is_python_space(unicode::next_code_point(text, pos));
    if (!space) {
      if (!in_word && !out.empty()) out += ' ';
      out += text.substr(begin, pos - begin);
    }
    in_word = !space;
  }
  return out;
}

// Tags and comments out, runs of white space to one space.
Result<Value> striptags(Interpreter& /*interpreter*/, const Value& input, Args args) {
  TRY(BoundArgs::bind("do_striptags", args, {}, 0));
  std::string text = TRY(to_text(input));
  text = without_ranges(text, "<!--", "-->");
  text = without_ranges(text, "<", ">");
  static constexpr std::pair<std::string_view, std::string_view> kEntities[] = {
      {"&lt;", "<"}, {"&gt;", ">"}, {"&#39;", "'"}, {"&#34;", "\""}, {"&quot;", "\""}, {"&amp;", "&"}};
  std::string out = with_single_spaces(text);
  for (const auto& [from, to] : kEntities) out = replace_text(out, from, to, -1);
  return Value(std::move(out));
}

}  // namespace

FilterFunction find_text_filter(std::string_view name) {
  static constexpr NamedFilter kFilters[] = {{"lower", lower},
                                             {"upper", upper},
                                             {"capitalize", capitalize},
                                             {"title", title},
                                             {"trim", trim_filter},
                                             {"replace", replace_filter},
                                             {"string", string},
                                             {"tojson", tojson},
                                             {"indent", indent},
                                             {"truncate", truncate},
                                             {"center", center},
                                             {"escape", escape},
                                             {"e", escape},
                                             {"forceescape", escape},
                                             {"safe", string},
                                             {"urlencode", urlencode},
                                             {"wordcount", wordcount},
                                             {"format", format_filter},
                                             {"striptags", striptags}};
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.function;
  }
  return nullptr;
}

FilterFunction find_filter(std::string_view name) {
  for (const auto find : {find_text_filter, find_list_filter, find_order_filter, find_number_filter}) {
    if (const FilterFunction found = find(name)) return found;
  }
  return nullptr;
}

}  // namespace mortise::jinja
