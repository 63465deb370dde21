// The type of every data column, decided once over all rows of a run: training and validation files together.
//
// A reward sees a column under one type. If each batch decided it, the reward of a row would depend on the rows next to
// it: one 0.5 among integers, one number among texts. The rules:
//
//   texts                          text
//   integers that fit int64        integer
//   numbers with a fraction among  number (float64), if it holds every value exactly
//   booleans, lists, objects       json
//   anything else mixed            an error that names two rows, unless data.columns declares the type
//
// Null and absent values have every type; a column without any value is text. Declared: text takes every value (a
// number or a list as its JSON text), json too, integer takes 99.0, number takes what float64 holds exactly.
// Cost: one pass over the rows. Threading: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "foundation/base/result.h"
#include "foundation/formats/json.h"
#include "plugin/host/kinds/reward.h"

namespace mortise {

using DeclaredColumns = std::map<std::string, ColumnType, std::less<>>;

// data.columns, whose values the config has checked: {"answer": "text"}.
[[nodiscard]] DeclaredColumns declared_columns(const Json& columns);
// "answer=integer, level=text"
[[nodiscard]] std::string describe_columns(const ColumnTypes& types);

// The value at the path of a column: a column of that whole name first, then a dotted path into JSON, as rewards look it
// up (plugins/shared/columns.h). Null: there is none. Borrowed.
[[nodiscard]] const Json* column_at(const Json& columns, std::string_view path);

class ColumnCensus {
 public:
  explicit ColumnCensus(DeclaredColumns declared = {}) : declared_(std::move(declared)) {}

  // The value of a column in the row that has number `row` in decide(). True: decide() may ask where the row is.
  bool see(const std::string& name, const Json& value, int64_t row);
  // The same of all columns of a row, an object.
  bool see_row(const Json& columns, int64_t row);

  // `where` gives "file:line" of a row.
  [[nodiscard]] Result<ColumnTypes> decide(const std::function<std::string(int64_t row)>& where) const;
  // Declared columns that no row has.
  [[nodiscard]] std::vector<std::string> unseen() const;
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  // What the JSON says. kLong: an integer that float64 does not hold exactly; kHuge: one that int64 does not hold
  // either.
  enum Kind : size_t { kString, kInteger, kLong, kHuge, kFraction, kNested, kNumValueKinds };
  static constexpr int64_t kNowhere = -1;
  struct Column {
    std::string name;
    std::optional<ColumnType> declared;
    std::array<int64_t, kNumValueKinds> first;  // row; kNowhere
    int64_t misfit_row = kNowhere;              // the first row whose value does not fit the declared type
    std::string misfit;                         // that value
  };
  static Kind kind_of(const Json& value);
  static const char* kind_name(Kind kind);
  static std::optional<ColumnType> common_type(const Column& column);
  static Error mixed(const Column& column, const std::function<std::string(int64_t)>& where);

  Column& column(const std::string& name);

  DeclaredColumns declared_;
  std::vector<Column> columns_;
  std::unordered_map<std::string, size_t> places_;  // in columns_
};

}  // namespace mortise
