// The type of a column comes from all rows at once, and a mixture names two of them.
#include "experience/data/column_types.h"

#include <gmock/gmock.h>

#include <limits>

namespace mortise {
namespace {

std::string where(int64_t row) { return "rows.jsonl:" + std::to_string(row + 1); }

// The type of a column with these values, or the error.
std::string type_of(const std::vector<Json>& values, const DeclaredColumns& declared = {}) {
  ColumnCensus census(declared);
  for (size_t i = 0; i < values.size(); ++i) census.see("c", values[i], static_cast<int64_t>(i));
  const Result<ColumnTypes> types = census.decide(where);
  if (!types.ok()) return types.error().to_string();
  return types->empty() ? "nothing" : std::string(column_type_name(types->front().second));
}

TEST(ColumnTypes, AreTheNarrowestOfAllRows) {
  EXPECT_EQ(type_of({"a", nullptr, ""}), "text");
  EXPECT_EQ(type_of({nullptr, nullptr}), "text");
  EXPECT_EQ(type_of({1, nullptr, -3}), "integer");
  EXPECT_EQ(type_of({1, 99.0}), "number");
  EXPECT_EQ(type_of({0.5}), "number");
  EXPECT_EQ(type_of({true, false}), "json");
  EXPECT_EQ(type_of({Json{1, 2}, Json{{"k", 1}}, true}), "json");
  EXPECT_EQ(type_of({}), "nothing");
}

TEST(ColumnTypes, LargeIntegersStayExact) {
  constexpr int64_t kOdd = (int64_t{1} << 53) + 1;  // the first integer that a double does not hold
  EXPECT_EQ(type_of({kOdd, 1, std::numeric_limits<int64_t>::min()}), "integer");
  EXPECT_EQ(type_of({kOdd - 1, 0.5}), "number");
  EXPECT_EQ(
      type_of({1, kOdd, 0.5}),
      "rows.jsonl:3: the data column 'c' holds an integer that float64 cannot represent exactly in rows.jsonl:2 and "
      "a number that is not an integer in rows.jsonl:3, but rewards see one type for all rows; write the values in "
      "one form, or declare the type: data.columns = { c = \"text\" }, or \"json\"");
  EXPECT_EQ(type_of({uint64_t{1} << 63}), "number") << "a power of two";
  EXPECT_THAT(type_of({1, std::numeric_limits<uint64_t>::max()}),
              testing::StartsWith("rows.jsonl:2: the data column 'c' holds an integer in rows.jsonl:1 and an integer "
                                  "above 9223372036854775807 in rows.jsonl:2"));
  EXPECT_THAT(type_of({std::numeric_limits<uint64_t>::max()}),
              testing::StartsWith("rows.jsonl:1: the data column 'c' holds an integer above 9223372036854775807, "
                                  "which is too large for a number"));
}

TEST(ColumnTypes, AMixtureNamesTheFirstTwoRowsThatDiffer) {
  const std::vector<std::vector<Json>> mixtures = {
      {"a", "b", 7, "c", 8}, {nullptr, 1, 2, "x"}, {0.5, true}, {"a", Json{1}}, {Json{{"k", 1}}, "a"}};
  const std::vector<std::string> starts = {
      "rows.jsonl:3: the data column 'c' holds text in rows.jsonl:1 and an integer in rows.jsonl:3, but rewards see",
      "rows.jsonl:4: the data column 'c' holds an integer in rows.jsonl:2 and text in rows.jsonl:4,",
      "rows.jsonl:2: the data column 'c' holds a number that is not an integer in rows.jsonl:1 and a boolean, list or",
      "rows.jsonl:2: the data column 'c' holds text in rows.jsonl:1 and a boolean, list or object in rows.jsonl:2,",
      "rows.jsonl:2: the data column 'c' holds a boolean, list or object in rows.jsonl:1 and text in rows.jsonl:2,"};
  for (size_t i = 0; i < mixtures.size(); ++i) EXPECT_THAT(type_of(mixtures[i]), testing::StartsWith(starts[i]));
}

TEST(ColumnTypes, ADeclaredTypeTakesWhatItHoldsWithoutLoss) {
  const auto as = [](ColumnType type) { return DeclaredColumns{{"c", type}}; };
  const std::vector<Json> mixed = {"a", 7, 99.0, Json{1, 2}, true, nullptr};
  EXPECT_EQ(type_of(mixed, as(ColumnType::kText)), "text");
  EXPECT_EQ(type_of(mixed, as(ColumnType::kJson)), "json");
  EXPECT_EQ(type_of({1, 99.0, -0.0}, as(ColumnType::kI64)), "integer");
  EXPECT_EQ(type_of({1, 2}, as(ColumnType::kF64)), "number");
  EXPECT_EQ(
      type_of({1, 99.5}, as(ColumnType::kI64)),
      "rows.jsonl:2: the data column 'c' is declared as integer, but holds 99.5; write integer values, or declare "
      "\"text\" or \"json\"");
  EXPECT_THAT(type_of({"1"}, as(ColumnType::kF64)), testing::HasSubstr("declared as number, but holds \"1\""));
  EXPECT_THAT(type_of({(int64_t{1} << 53) + 1}, as(ColumnType::kF64)), testing::HasSubstr("holds 9007199254740993"));
  EXPECT_EQ(declared_columns({{"a", "json"}, {"b", "text"}}),
            (DeclaredColumns{{"a", ColumnType::kJson}, {"b", ColumnType::kText}}));
}

TEST(ColumnTypes, EveryColumnIsTold) {
  ColumnCensus census({{"late", ColumnType::kText}, {"never", ColumnType::kText}});
  census.see_row({{"a", 1}, {"odd name.", "x"}}, 0);
  census.see_row({{"late", 5}, {"a", 2.5}}, 1);
  EXPECT_EQ(describe_columns(census.decide(where).value()), "a=number, odd name.=text, late=text");
  EXPECT_THAT(census.unseen(), testing::ElementsAre("never"));
  census.see_row({{"odd name.", 1}, {"a", "x"}}, 2);
  const Error error = census.decide(where).error();
  EXPECT_EQ(error.kind, ErrorKind::kData);
  EXPECT_THAT(error.what, testing::EndsWith("(1 more column has such a fault)"));
}

}  // namespace
}  // namespace mortise
