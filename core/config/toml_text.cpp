// Quotes texts and writes numbers, lists and tables as TOML.
#include "config/toml_text.h"

#include <array>

#include "foundation/base/text.h"

namespace mortise {
namespace {

std::string basic_string(std::string_view text) {
  std::string out = "\"";
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    switch (character) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (byte < 0x20 || byte == 0x7f) {
          constexpr std::string_view kHex = "0123456789ABCDEF";
          out.append("\\u00").append(1, kHex[byte >> 4]).append(1, kHex[byte & 15]);
        } else {
          out += character;
        }
    }
  }
  return out + "\"";
}

// format_f64 writes whole numbers without a point, which TOML would read as integers.
std::string float_text(double value) {
  std::string text = format_f64(value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

std::string toml_key(std::string_view key) {
  const bool bare = !key.empty() && key.find_first_not_of(
                                        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                        "_-") == std::string_view::npos;
  return bare ? std::string(key) : basic_string(key);
}

std::string toml_value(const Json& value) {
  switch (value.type()) {
    case Json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return std::to_string(value.get<int64_t>());
    case Json::value_t::number_float:
      return float_text(value.get<double>());
    case Json::value_t::string:
      return basic_string(value.get_ref<const std::string&>());
    case Json::value_t::array: {
      std::string text = "[";
      for (const Json& item : value) text += (text.size() > 1 ? ", " : "") + toml_value(item);
      return text + "]";
    }
    case Json::value_t::object: {
      std::string text = "{";
      for (const auto& [key, item] : value.items()) {
        text.append(text.size() > 1 ? ", " : " ").append(toml_key(key)).append(" = ").append(toml_value(item));
      }
      return text.size() > 1 ? text + " }" : "{}";
    }
    default:
      return "\"null\"";
  }
}

}  // namespace mortise
