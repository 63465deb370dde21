// Rows of Arrow arrays as JSON, with the values that `datasets` and pyarrow's to_pylist give.
//
//   integers, floats, booleans, texts, lists, structs   the same in JSON; NaN and infinities are null
//   maps                                                a list of [key, value] pairs
//   dictionaries                                        their values
//   arrow.json (the Json feature of datasets)           the JSON that the text holds; the text, if it holds none
//   timestamps, dates, times                            ISO 8601 as Python's isoformat(); time zones as UTC
//   durations                                           seconds
//   decimals                                            a text with all digits
//   binary                                              base64
// Unions, intervals and run-end encoding have no form. Thread rule: plain functions.
#pragma once

#include <arrow/array/array_base.h>
#include <arrow/type_fwd.h>

#include <cstdint>
#include <string>

namespace mortise::arrow_module {

// An error names the column whose type has no form.
arrow::Status check_types(const arrow::Schema& schema);

// Appends the value at `index`, whose type check_types() has let through.
void append_json(const arrow::Array& array, int64_t index, std::string& out);
// `text` in quotes.
void append_json_text(std::string_view text, std::string& out);

}  // namespace mortise::arrow_module
