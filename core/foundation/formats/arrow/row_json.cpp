// See row_json.h.
#include "foundation/formats/arrow/row_json.h"

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/status.h>
#include <arrow/type.h>
#include <arrow/util/base64.h>
#include <arrow/util/decimal.h>
#include <arrow/util/float16.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "parse/json.h"

namespace mortise::arrow_module {

namespace {

using arrow::Type;

constexpr int kMaxTypeDepth = 64;
constexpr const char* kJsonExtension = "arrow.json";

arrow::Status check_type(const arrow::DataType& type, const std::string& column, int depth) {
  const auto refuse = [&](const auto&... why) {
    return arrow::Status::NotImplemented("the column '", column, "' ", why...);
  };
  if (depth > kMaxTypeDepth) return refuse("is nested deeper than 64 levels");
  switch (type.id()) {
    case Type::SPARSE_UNION:
    case Type::DENSE_UNION:
    case Type::INTERVAL_MONTHS:
    case Type::INTERVAL_DAY_TIME:
    case Type::INTERVAL_MONTH_DAY_NANO:
    case Type::RUN_END_ENCODED:
      return refuse("has the type ", type.ToString(), ", which has no form as a data row");
    case Type::EXTENSION:
      return check_type(*static_cast<const arrow::ExtensionType&>(type).storage_type(), column, depth + 1);
    case Type::DICTIONARY:
      return check_type(*static_cast<const arrow::DictionaryType&>(type).value_type(), column, depth + 1);
    default:
      break;
  }
  for (const auto& field : type.fields()) ARROW_RETURN_NOT_OK(check_type(*field->type(), column, depth + 1));
  return arrow::Status::OK();
}

template <class Number>
void append_integer(Number value, std::string& out) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  out.append(text, end);
}

// The shortest text with the same bits; a number with a fraction or an exponent stays one.
void append_double(double value, std::string& out) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  const std::string_view number(text, static_cast<size_t>(end - text));
  out += number;
  if (number.find_first_of(".e") == std::string_view::npos) out += ".0";
}

int64_t per_second(arrow::TimeUnit::type unit) {
  switch (unit) {
    case arrow::TimeUnit::SECOND:
      return 1;
    case arrow::TimeUnit::MILLI:
      return 1'000;
    case arrow::TimeUnit::MICRO:
      return 1'000'000;
    case arrow::TimeUnit::NANO:
      break;
  }
  return 1'000'000'000;
}

// Rounded down, also below 0.
int64_t floor_div(int64_t value, int64_t by) { return value / by - (value % by < 0 ? 1 : 0); }

std::string date_text(int64_t days) {
  const std::chrono::year_month_day date{std::chrono::sys_days{std::chrono::days{days}}};
  char text[40];
  std::snprintf(text, sizeof(text), "%04d-%02u-%02u", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
  return text;
}

// The time of a day as isoformat() writes it: microseconds if there are any, nanoseconds if there are any.
std::string time_text(int64_t value, int64_t units) {
  const int64_t seconds = value / units, nanoseconds = value % units * (1'000'000'000 / units);
  char text[64];
  int size = std::snprintf(text, sizeof(text), "%02d:%02d:%02d", static_cast<int>(seconds / 3600),
                           static_cast<int>(seconds / 60 % 60), static_cast<int>(seconds % 60));
  const auto rest = static_cast<size_t>(size);
  if (nanoseconds % 1000 != 0)
    std::snprintf(text + rest, sizeof(text) - rest, ".%09d", static_cast<int>(nanoseconds));
  else if (nanoseconds != 0)
    std::snprintf(text + rest, sizeof(text) - rest, ".%06d", static_cast<int>(nanoseconds / 1000));
  return text;
}

constexpr int64_t kDaySeconds = 86'400;
constexpr int64_t kFirstDay = -719'162, kLastDay = 2'932'896;  // 0001-01-01 and 9999-12-31, the years of Python

bool is_day(int64_t days) { return days >= kFirstDay && days <= kLastDay; }

void append_timestamp(const arrow::TimestampType& type, int64_t value, std::string& out) {
  const int64_t units = per_second(type.unit());
  const int64_t days = floor_div(floor_div(value, units), kDaySeconds);
  if (!is_day(days)) return append_integer(value, out);
  const int64_t in_day = value - days * kDaySeconds * units;
  out += '"' + date_text(days) + 'T' + time_text(in_day, units) + (type.timezone().empty() ? "" : "+00:00") + '"';
}

void append_date(int64_t days, std::string& out) {
  if (is_day(days))
    out += '"' + date_text(days) + '"';
  else
    append_integer(days, out);
}

void append_items(const arrow::Array& items, int64_t begin, int64_t size, std::string& out) {
  out += '[';
  for (int64_t i = 0; i < size; ++i) {
    if (i > 0) out += ',';
    append_json(items, begin + i, out);
  }
  out += ']';
}

template <class ListArray>
void append_list(const arrow::Array& array, int64_t index, std::string& out) {
  const auto& list = static_cast<const ListArray&>(array);
  append_items(*list.values(), list.value_offset(index), list.value_length(index), out);
}

void append_map(const arrow::MapArray& map, int64_t index, std::string& out) {
  out += '[';
  const int64_t begin = map.value_offset(index);
  for (int64_t i = 0; i < map.value_length(index); ++i) {
    out += i > 0 ? ",[" : "[";
    append_json(*map.keys(), begin + i, out);
    out += ',';
    append_json(*map.items(), begin + i, out);
    out += ']';
  }
  out += ']';
}

void append_struct(const arrow::StructArray& array, int64_t index, std::string& out) {
  out += '{';
  for (int i = 0; i < array.num_fields(); ++i) {
    if (i > 0) out += ',';
    append_json_text(array.struct_type()->field(i)->name(), out);
    out += ':';
    append_json(*array.field(i), index, out);
  }
  out += '}';
}

// A text that is not JSON must not break out of its place in the row.
void append_extension(const arrow::ExtensionArray& array, int64_t index, std::string& out) {
  const arrow::Array& storage = *array.storage();
  const auto& type = static_cast<const arrow::ExtensionType&>(*array.type());
  const size_t begin = out.size();
  append_json(storage, index, out);
  if (type.extension_name() != kJsonExtension || storage.IsNull(index)) return;
  std::string_view text;
  switch (storage.type_id()) {
    case Type::STRING:
      text = static_cast<const arrow::StringArray&>(storage).GetView(index);
      break;
    case Type::LARGE_STRING:
      text = static_cast<const arrow::LargeStringArray&>(storage).GetView(index);
      break;
    case Type::STRING_VIEW:
      text = static_cast<const arrow::StringViewArray&>(storage).GetView(index);
      break;
    default:
      return;
  }
  if (parse::check_json(text)) return;
  out.resize(begin);
  out += text;
}

template <class BinaryArray>
void append_binary(const arrow::Array& array, int64_t index, std::string& out) {
  const std::string_view bytes = static_cast<const BinaryArray&>(array).GetView(index);
  append_json_text(arrow::util::base64_encode(bytes), out);
}

template <class TextArray>
void append_text(const arrow::Array& array, int64_t index, std::string& out) {
  append_json_text(static_cast<const TextArray&>(array).GetView(index), out);
}

template <class NumberArray>
auto number_at(const arrow::Array& array, int64_t index) {
  return static_cast<const NumberArray&>(array).Value(index);
}

// Numbers, texts and times; false: the type is none of these.
bool append_plain(const arrow::Array& array, int64_t index, std::string& out) {
  switch (array.type_id()) {
    case Type::BOOL:
      out += number_at<arrow::BooleanArray>(array, index) ? "true" : "false";
      return true;
    case Type::INT8:
      append_integer(number_at<arrow::Int8Array>(array, index), out);
      return true;
    case Type::INT16:
      append_integer(number_at<arrow::Int16Array>(array, index), out);
      return true;
    case Type::INT32:
      append_integer(number_at<arrow::Int32Array>(array, index), out);
      return true;
    case Type::INT64:
      append_integer(number_at<arrow::Int64Array>(array, index), out);
      return true;
    case Type::UINT8:
      append_integer(number_at<arrow::UInt8Array>(array, index), out);
      return true;
    case Type::UINT16:
      append_integer(number_at<arrow::UInt16Array>(array, index), out);
      return true;
    case Type::UINT32:
      append_integer(number_at<arrow::UInt32Array>(array, index), out);
      return true;
    case Type::UINT64:
      append_integer(number_at<arrow::UInt64Array>(array, index), out);
      return true;
    case Type::HALF_FLOAT:
      append_double(arrow::util::Float16::FromBits(number_at<arrow::HalfFloatArray>(array, index)).ToDouble(), out);
      return true;
    case Type::FLOAT:
      append_double(number_at<arrow::FloatArray>(array, index), out);
      return true;
    case Type::DOUBLE:
      append_double(number_at<arrow::DoubleArray>(array, index), out);
      return true;
    case Type::STRING:
      append_text<arrow::StringArray>(array, index, out);
      return true;
    case Type::LARGE_STRING:
      append_text<arrow::LargeStringArray>(array, index, out);
      return true;
    case Type::STRING_VIEW:
      append_text<arrow::StringViewArray>(array, index, out);
      return true;
    case Type::BINARY:
      append_binary<arrow::BinaryArray>(array, index, out);
      return true;
    case Type::LARGE_BINARY:
      append_binary<arrow::LargeBinaryArray>(array, index, out);
      return true;
    case Type::BINARY_VIEW:
      append_binary<arrow::BinaryViewArray>(array, index, out);
      return true;
    case Type::FIXED_SIZE_BINARY:
      append_binary<arrow::FixedSizeBinaryArray>(array, index, out);
      return true;
    default:
      return false;
  }
}

// Decimals are fixed-size binaries to Arrow's classes, but not to its types.
template <class DecimalArray>
void append_decimal(const arrow::Array& array, int64_t index, std::string& out) {
  append_json_text(static_cast<const DecimalArray&>(array).FormatValue(index), out);
}

bool append_time(const arrow::Array& array, int64_t index, std::string& out) {
  switch (array.type_id()) {
    case Type::TIMESTAMP:
      append_timestamp(static_cast<const arrow::TimestampType&>(*array.type()),
                       number_at<arrow::TimestampArray>(array, index), out);
      return true;
    case Type::DATE32:
      append_date(number_at<arrow::Date32Array>(array, index), out);
      return true;
    case Type::DATE64:
      append_date(floor_div(number_at<arrow::Date64Array>(array, index), kDaySeconds * 1000), out);
      return true;
    case Type::TIME32:
    case Type::TIME64: {
      const bool is_long = array.type_id() == Type::TIME64;
      const int64_t value =
          is_long ? number_at<arrow::Time64Array>(array, index) : int64_t{number_at<arrow::Time32Array>(array, index)};
      const int64_t units = per_second(static_cast<const arrow::TimeType&>(*array.type()).unit());
      if (value < 0 || value / units >= kDaySeconds)
        append_integer(value, out);
      else
        out += '"' + time_text(value, units) + '"';
      return true;
    }
    case Type::DURATION: {
      const int64_t units = per_second(static_cast<const arrow::DurationType&>(*array.type()).unit());
      const int64_t value = number_at<arrow::DurationArray>(array, index);
      append_double(static_cast<double>(value) / static_cast<double>(units), out);
      return true;
    }
    case Type::DECIMAL32:
      append_decimal<arrow::Decimal32Array>(array, index, out);
      return true;
    case Type::DECIMAL64:
      append_decimal<arrow::Decimal64Array>(array, index, out);
      return true;
    case Type::DECIMAL128:
      append_decimal<arrow::Decimal128Array>(array, index, out);
      return true;
    case Type::DECIMAL256:
      append_decimal<arrow::Decimal256Array>(array, index, out);
      return true;
    default:
      return false;
  }
}

}  // namespace

arrow::Status check_types(const arrow::Schema& schema) {
  for (const auto& field : schema.fields()) ARROW_RETURN_NOT_OK(check_type(*field->type(), field->name(), 0));
  return arrow::Status::OK();
}

void append_json_text(std::string_view text, std::string& out) {
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_json(const arrow::Array& array, int64_t index, std::string& out) {
  if (array.IsNull(index)) {
    out += "null";
    return;
  }
  switch (array.type_id()) {
    case Type::LIST:
      return append_list<arrow::ListArray>(array, index, out);
    case Type::LARGE_LIST:
      return append_list<arrow::LargeListArray>(array, index, out);
    case Type::LIST_VIEW:
      return append_list<arrow::ListViewArray>(array, index, out);
    case Type::LARGE_LIST_VIEW:
      return append_list<arrow::LargeListViewArray>(array, index, out);
    case Type::FIXED_SIZE_LIST:
      return append_list<arrow::FixedSizeListArray>(array, index, out);
    case Type::MAP:
      return append_map(static_cast<const arrow::MapArray&>(array), index, out);
    case Type::STRUCT:
      return append_struct(static_cast<const arrow::StructArray&>(array), index, out);
    case Type::EXTENSION:
      return append_extension(static_cast<const arrow::ExtensionArray&>(array), index, out);
    case Type::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
      return append_json(*dictionary.dictionary(), dictionary.GetValueIndex(index), out);
    }
    default:
      break;
  }
  if (append_plain(array, index, out) || append_time(array, index, out)) return;
  out += "null";  // the null type
}

}  // namespace mortise::arrow_module
