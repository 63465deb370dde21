// See json_text.h.
#include "text/template/json_text.h"

#include <fmt/core.h>
#include <algorithm>
#include <cmath>

#include "text/template/work.h"
#include "text/unicode/utf8.h"

namespace mortise::jinja {
namespace {

constexpr int kMaxJsonDepth = 300;

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}
  Result<std::string> run(const Value& value) {
    TRY(write(value, 0));
    TRY(use_work(1));
    TRY(text_may_have(out_.size()));
    return std::move(out_);
  }

 private:
  // The template chooses indent and separators, which may be large and come often.
  void append(std::string_view text) {
    if (spend_work(text.size()) && out_.size() <= max_text_bytes) out_ += text;
  }

  void string(std::string_view text) {
    char buffer[16];
    out_ += '"';
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      const char32_t code = unicode::next_code_point(text, pos);
      switch (code) {
        case '"':
          out_ += "\\\"";
          continue;
        case '\\':
          out_ += "\\\\";
          continue;
        case '\n':
          out_ += "\\n";
          continue;
        case '\r':
          out_ += "\\r";
          continue;
        case '\t':
          out_ += "\\t";
          continue;
        case '\b':
          out_ += "\\b";
          continue;
        case '\f':
          out_ += "\\f";
          continue;
        default:
          break;
      }
      if (code >= 0x20 && (code < 0x7F || !style_.ensure_ascii || code == 0x7F)) {
        out_ += text.substr(begin, pos - begin);
      } else if (code < 0x10000) {
        std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(code));
        out_ += buffer;
      } else {
        const auto rest = static_cast<unsigned>(code - 0x10000);
        std::snprintf(buffer, sizeof buffer, "\\u%04x\\u%04x", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
        out_ += buffer;
      }
    }
    out_ += '"';
  }

  void number(double value) {
    if (std::isnan(value)) {
      out_ += "NaN";
    } else if (std::isinf(value)) {
      out_ += value < 0 ? "-Infinity" : "Infinity";
    } else {
      out_ += float_text(value);
    }
  }

  void new_line(int depth) {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < depth; ++i) append(*style_.indent);
  }

  Result<> list(const std::vector<Value>& items, int depth) {
    if (items.empty()) return out_ += "[]", Result<>();
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) append(style_.item_separator);
      new_line(depth + 1);
      TRY(write(items[i], depth + 1));
    }
    new_line(depth);
    out_ += ']';
    return {};
  }

  // Keys that are no text print as JSON would print them.
  static Result<std::string> key_text(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        return key.string();
      case Kind::kNone:
        return std::string("null");
      case Kind::kBool:
        return std::string(key.boolean() ? "true" : "false");
      case Kind::kInt:
      case Kind::kFloat:
        return to_repr(key);
      default:
        return type_error("keys must be str, int, float, bool or None, not " + type_name(key));
    }
  }

  Result<> dict(const Dict& dict, int depth) {
    if (dict.size() == 0) return out_ += "{}", Result<>();
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items()) items.push_back(&item);
    if (style_.sort_keys) {
      for (size_t i = 1; i < items.size(); ++i) TRY(less_than(items[i - 1]->first, items[i]->first, "<"));
      std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
        const auto less = less_than(a->first, b->first, "<");
        return less.ok() && *less;
      });
    }
    out_ += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) append(style_.item_separator);
      new_line(depth + 1);
      string(TRY(key_text(items[i]->first)));
      append(style_.key_separator);
      TRY(write(items[i]->second, depth + 1));
    }
    new_line(depth);
    out_ += '}';
    return {};
  }

  Result<> write(const Value& value, int depth) {
    if (depth > kMaxJsonDepth) return type_error("maximum recursion depth exceeded while encoding a JSON object");
    TRY(use_work(work_over(value)));
    TRY(text_may_have(out_.size()));
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        return {};
      case Kind::kBool:
        out_ += value.boolean() ? "true" : "false";
        return {};
      case Kind::kInt:
        out_ += int_text(value.integer());
        return {};
      case Kind::kFloat:
        number(value.number());
        return {};
      case Kind::kString:
        string(value.string());
        return {};
      case Kind::kList:
        return list(value.list_value().items, depth);
      case Kind::kTuple:
        return list(value.tuple_value().items, depth);
      case Kind::kDict:
        return dict(value.dict(), depth);
      default:
        return type_error(fmt::format("Object of type {} is not JSON serializable", type_name(value)));
    }
  }

  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

Value from_json(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      return Value(static_cast<Int>(json.get<uint64_t>()));
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string:
      return Value(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(from_json(item));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, item] : json.items())
        static_cast<void>(dict->set(Value(key), from_json(item)));  // text keys always fit
      return Value(std::shared_ptr<const Dict>(std::move(dict)));
    }
    default:
      return Value();
  }
}

Result<std::string> json_text(const Value& value, const JsonStyle& style) { return Writer(style).run(value); }

}  // namespace mortise::jinja
