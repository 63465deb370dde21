// 'a %s' % x. See format.h.
#include "text/template/format.h"

#include <fmt/core.h>
#include <algorithm>
#include <cmath>

#include "text/template/number_format.h"
#include "text/template/py_string.h"
#include "text/template/work.h"
#include "text/unicode/utf8.h"

namespace mortise::jinja {
namespace {

constexpr int64_t kMaxWidth = 1'000'000;

class PercentFormat {
 public:
  PercentFormat(std::string_view format, const Value& values) : format_(format), values_(values) {
    if (values.is(Kind::kTuple)) {
      items_ = values.tuple_value().items;
    } else {
      items_.push_back(values);
    }
  }

  Result<std::string> run() {
    while (pos_ < format_.size()) {
      const char c = format_[pos_++];
      if (c != '%') {
        out_ += c;
      } else {
        const size_t before = out_.size();
        TRY(field());
        TRY(use_work(out_.size() - before));
        TRY(text_may_have(out_.size()));
      }
    }
    // Python treats anything that can be indexed, except texts and tuples, as a mapping that need not be used up.
    const bool mapping_like = values_.is(Kind::kDict) || values_.is(Kind::kList) || values_.is(Kind::kRange);
    const bool leftover = next_ < items_.size() && !mapping_like && !used_mapping_;
    if (leftover) return type_error("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  Result<Value> take() {
    if (next_ >= items_.size()) return type_error("not enough arguments for format string");
    return items_[next_++];
  }

  Result<std::optional<Value>> mapped_value() {
    if (pos_ >= format_.size() || format_[pos_] != '(') return std::optional<Value>();
    int depth = 1;
    const size_t begin = ++pos_;
    while (pos_ < format_.size() && depth > 0) {
      depth += format_[pos_] == '(' ? 1 : format_[pos_] == ')' ? -1 : 0;
      ++pos_;
    }
    if (depth > 0) return type_error("incomplete format key");
    if (!values_.is(Kind::kDict)) return type_error("format requires a mapping");
    used_mapping_ = true;
    const std::string key(format_.substr(begin, pos_ - begin - 1));
    const Value* value = values_.dict().find(std::string_view(key));
    if (value == nullptr) return type_error(string_repr(key));
    return std::optional<Value>(*value);
  }

  Result<int64_t> number_or_star(int64_t absent) {
    if (pos_ < format_.size() && format_[pos_] == '*') {
      ++pos_;
      const Value value = TRY(take());
      if (!value.is_integral()) return type_error("* wants int");
      return static_cast<int64_t>(std::clamp<Int>(value.integer(), -kMaxWidth, kMaxWidth));
    }
    if (pos_ >= format_.size() || format_[pos_] < '0' || format_[pos_] > '9') return absent;
    int64_t number = 0;
    while (pos_ < format_.size() && format_[pos_] >= '0' && format_[pos_] <= '9') {
      number = std::min(number * 10 + (format_[pos_++] - '0'), kMaxWidth + 1);
    }
    if (number > kMaxWidth) return type_error("a width or precision in a format is too big");
    return number;
  }

  Result<> field() {
    NumberFormat style;
    const std::optional<Value> mapped = TRY(mapped_value());
    bool left = false;
    for (; pos_ < format_.size(); ++pos_) {
      const char flag = format_[pos_];
      if (flag == '-')
        left = true;
      else if (flag == '+')
        style.sign = '+';
      else if (flag == ' ' && style.sign != '+')
        style.sign = ' ';
      else if (flag == '#')
        style.alternate = true;
      else if (flag == '0')
        style.zero = true;
      else if (flag != ' ')
        break;
    }
    style.width = TRY(number_or_star(0));
    if (style.width < 0) {
      left = true;
      style.width = -style.width;
    }
    if (pos_ < format_.size() && format_[pos_] == '.') {
      ++pos_;
      style.precision = std::max<int64_t>(TRY(number_or_star(0)), 0);
    }
    while (pos_ < format_.size() && (format_[pos_] == 'h' || format_[pos_] == 'l' || format_[pos_] == 'L')) ++pos_;
    if (pos_ >= format_.size()) return type_error("incomplete format");
    style.type = format_[pos_++];
    if (style.type == '%') {
      out_ += '%';
      return {};
    }
    if (std::string_view("diouxXeEfFgGcrsa").find(style.type) == std::string_view::npos) {
      return type_error(
          fmt::format("unsupported format character '{}' at index {}", std::string(1, style.type), pos_ - 1));
    }
    const Value value = mapped ? *mapped : TRY(take());
    style.align = left ? '<' : style.zero && style.type != 's' && style.type != 'r' && style.type != 'a' ? '=' : '>';
    style.fill = style.align == '=' ? "0" : " ";
    out_ += TRY(one(value, style));
    return {};
  }

  static Result<std::string> one(const Value& value, NumberFormat style) {
    switch (style.type) {
      case 's':
        return padded_text(TRY(to_text(value)), style);
      case 'r':
      case 'a':
        return padded_text(TRY(to_repr(value)), style);
      case 'c': {
        if (value.is(Kind::kString) && unicode::count_code_points(value.string()) == 1)
          return padded_text(value.string(), style);
        return type_error("%c requires int or char");
      }
      case 'd':
      case 'i':
      case 'u': {
        if (!value.is_number())
          return type_error(fmt::format("%{} format: a real number is required, not {}", style.type, type_name(value)));
        const Int whole =
            value.is(Kind::kFloat) ? static_cast<Int>(std::clamp(value.number(), -1e38, 1e38)) : value.integer();
        style.type = 'd';
        return format_integer(whole, style);
      }
      case 'o':
      case 'x':
      case 'X':
        if (!value.is_integral())
          return type_error(fmt::format("%{} format: an integer is required, not {}", style.type, type_name(value)));
        return format_integer(value.integer(), style);
      default:
        if (!value.is_number()) return type_error("must be real number, not " + type_name(value));
        return format_double(value.number(), style);
    }
  }

  std::string_view format_;
  const Value& values_;
  std::vector<Value> items_;
  size_t next_ = 0;
  size_t pos_ = 0;
  bool used_mapping_ = false;
  std::string out_;
};

}  // namespace

Result<std::string> percent_format(std::string_view format, const Value& values) {
  return PercentFormat(format, values).run();
}

}  // namespace mortise::jinja
