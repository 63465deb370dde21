// Counts the kinds of values in each column, and decides the column's type from the counts.
#include "experience/data/column_types.h"

#include <fmt/core.h>
#include <algorithm>
#include <cctype>
#include <cmath>

#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"

namespace mortise {

namespace {

constexpr double kTwoTo63 = 9223372036854775808.0;

bool fits_i64(const Json& integer) {
  return !integer.is_number_unsigned() || integer.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
}

// Does float64 hold the integer exactly?
bool fits_f64(const Json& integer) {
  if (!fits_i64(integer)) {
    const auto value = integer.get<uint64_t>();
    const auto number = static_cast<double>(value);
    return number < 2 * kTwoTo63 && static_cast<uint64_t>(number) == value;
  }
  const auto value = integer.get<int64_t>();
  const auto number = static_cast<double>(value);
  return number < kTwoTo63 && static_cast<int64_t>(number) == value;
}

bool holds(ColumnType type, const Json& value) {
  if (type == ColumnType::kText || type == ColumnType::kJson) return true;
  if (!value.is_number()) return false;
  if (type == ColumnType::kF64) return !value.is_number_integer() || fits_f64(value);
  if (value.is_number_integer()) return fits_i64(value);
  const auto number = value.get<double>();
  return number == std::floor(number) && std::abs(number) < kTwoTo63;
}

// `data.columns = { answer = "text" }`
std::string declaration(const std::string& name, std::string_view type) {
  const bool bare = !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  return fmt::format("data.columns = {{ {} = \"{}\" }}", bare ? name : dump_json(Json(name)), type);
}

}  // namespace

DeclaredColumns declared_columns(const Json& columns) {
  DeclaredColumns out;
  for (const auto& [name, type] : columns.items()) {
    if (const auto parsed = parse_column_type(type.is_string() ? type.get<std::string>() : "")) out[name] = *parsed;
  }
  return out;
}

std::string describe_columns(const ColumnTypes& types) {
  std::string out;
  for (const auto& [name, type] : types) {
    out += out.empty() ? "" : ", ";
    out += fmt::format("{}={}", name, column_type_name(type));
  }
  return out;
}

ColumnCensus::Kind ColumnCensus::kind_of(const Json& value) {
  if (value.is_string()) return kString;
  if (!value.is_number()) return kNested;
  if (!value.is_number_integer()) return kFraction;
  if (fits_f64(value)) return fits_i64(value) ? kInteger : kFraction;
  return fits_i64(value) ? kLong : kHuge;
}

const char* ColumnCensus::kind_name(Kind kind) {
  constexpr const char* kNames[kNumValueKinds] = {"text",
                                                  "an integer",
                                                  "an integer that float64 cannot represent exactly",
                                                  "an integer above 9223372036854775807",
                                                  "a number that is not an integer",
                                                  "a boolean, list or object"};
  return kNames[kind];
}

ColumnCensus::Column& ColumnCensus::column(const std::string& name) {
  const auto [entry, is_new] = places_.try_emplace(name, columns_.size());
  if (is_new) {
    Column& made = columns_.emplace_back();
    made.name = name;
    made.first.fill(kNowhere);
    if (const auto found = declared_.find(name); found != declared_.end()) made.declared = found->second;
  }
  return columns_[entry->second];
}

bool ColumnCensus::see(const std::string& name, const Json& value, int64_t row) {
  Column& column = this->column(name);
  if (value.is_null()) return false;
  int64_t& first = column.first[kind_of(value)];
  const bool is_first = first == kNowhere;
  if (is_first) first = row;
  if (!column.declared || column.misfit_row != kNowhere || holds(*column.declared, value)) return is_first;
  column.misfit_row = row;
  column.misfit = shorten(dump_json(value), 60);
  return true;
}

bool ColumnCensus::see_row(const Json& columns, int64_t row) {
  bool is_kept = false;
  for (const auto& [name, value] : columns.items()) is_kept |= see(name, value, row);
  return is_kept;
}

const Json* column_at(const Json& columns, std::string_view path) {
  if (const Json* whole = json_find(columns, path); whole != nullptr && !whole->is_null()) return whole;
  const Json* value = &columns;
  for (const std::string_view key : split(path, '.')) {
    value = value->is_object() ? json_find(*value, key) : nullptr;
    if (value == nullptr) return nullptr;
  }
  return value;
}

// The type that holds every value without loss; nothing if there is no value, or if the values are of several kinds.
std::optional<ColumnType> ColumnCensus::common_type(const Column& column) {
  const auto has = [&](Kind kind) { return column.first[kind] != kNowhere; };
  const bool numbers = has(kInteger) || has(kLong) || has(kHuge) || has(kFraction);
  if (has(kString) + has(kNested) + numbers > 1 || has(kHuge)) return std::nullopt;
  if (has(kNested)) return ColumnType::kJson;
  if (!numbers) return ColumnType::kText;
  if (!has(kFraction)) return ColumnType::kI64;
  return has(kLong) ? std::nullopt : std::optional(ColumnType::kF64);
}

// The first two kinds that no type holds together, or one kind if no type holds even that.
Error ColumnCensus::mixed(const Column& column, const std::function<std::string(int64_t)>& where) {
  std::vector<std::pair<int64_t, Kind>> seen;  // by their first rows
  for (size_t kind = 0; kind < kNumValueKinds; ++kind) {
    if (column.first[kind] != kNowhere) seen.emplace_back(column.first[kind], static_cast<Kind>(kind));
  }
  std::ranges::sort(seen);
  const auto clash = [&](Kind a, Kind b) {
    Column pair = column;
    pair.first.fill(kNowhere);
    pair.first[a] = pair.first[b] = 0;
    return !common_type(pair);
  };
  for (size_t later = 0; later < seen.size(); ++later) {
    for (size_t earlier = 0; earlier <= later; ++earlier) {
      const auto& [row_a, kind_a] = seen[earlier];
      const auto& [row_b, kind_b] = seen[later];
      if ((earlier == later && seen.size() > 1) || !clash(kind_a, kind_b)) continue;
      std::string what = fmt::format("the data column {} holds {}", quote(column.name), kind_name(kind_a));
      what += earlier == later ? ", which is too large for a number"
                               : fmt::format(" in {} and {} in {}, but rewards see one type for all rows", where(row_a),
                                             kind_name(kind_b), where(row_b));
      return {ErrorKind::kData, std::move(what), where(row_b),
              fmt::format("write the values in one form, or declare the type: {}, or \"json\"",
                          declaration(column.name, "text"))};
    }
  }
  return {ErrorKind::kInternal, fmt::format("the data column {} has a type after all", quote(column.name)), "", ""};
}

Result<ColumnTypes> ColumnCensus::decide(const std::function<std::string(int64_t)>& where) const {
  ColumnTypes types;
  std::vector<Error> problems;
  for (const Column& column : columns_) {
    if (column.misfit_row != kNowhere) {
      const std::string type(column_type_name(*column.declared));
      problems.push_back(
          {ErrorKind::kData,
           fmt::format("the data column {} is declared as {}, but holds {}", quote(column.name), type, column.misfit),
           where(column.misfit_row), fmt::format("write {} values, or declare \"text\" or \"json\"", type)});
      continue;
    }
    const std::optional<ColumnType> type = column.declared ? column.declared : common_type(column);
    if (type)
      types.emplace_back(column.name, *type);
    else
      problems.push_back(mixed(column, where));
  }
  if (problems.empty()) return types;
  Error first = std::move(problems.front());
  if (problems.size() > 1)
    first.what += problems.size() == 2 ? " (1 more column has such a fault)"
                                       : fmt::format(" ({} more columns have such a fault)", problems.size() - 1);
  return first;
}

std::vector<std::string> ColumnCensus::unseen() const {
  std::vector<std::string> out;
  for (const auto& [name, type] : declared_) {
    if (!places_.contains(name)) out.push_back(name);
  }
  return out;
}

std::vector<std::string> ColumnCensus::names() const {
  std::vector<std::string> out;
  for (const Column& column : columns_) out.push_back(column.name);
  return out;
}

}  // namespace mortise
