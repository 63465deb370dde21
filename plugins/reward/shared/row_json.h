// Rows as JSON text, for rewards that live elsewhere. JSON columns go over as they are, unparsed.
#pragma once

#include <string>
#include <string_view>

#include <mortise/cpp/reward.hpp>

namespace mortise {

// Bytes that are no UTF-8 become U+FFFD.
std::string json_text(std::string_view text);
// The value of a data column in this row; null if there is none.
std::string json_cell(const Row& row, std::string_view column);
std::string json_ids(Span<const std::int64_t> values);

// Why this row cannot be sent ("column 'meta' is not valid JSON"); empty: it can.
std::string unreadable(const Row& row);

}  // namespace mortise
