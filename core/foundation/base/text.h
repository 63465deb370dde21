// Small text helpers: UTF-8 checks, name suggestions, strict numbers, splitting. All pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parse/text.h"

namespace mortise {

using parse::append_utf8;
using parse::find_invalid_utf8;
using parse::quote;
using parse::text_position;
using parse::TextPosition;
using parse::trim;

// Optimal-string-alignment distance: insert, delete, replace, swap of neighbours cost 1 each. O(a*b).
[[nodiscard]] size_t edit_distance(std::string_view a, std::string_view b);

// The candidates most like `name` (distance at most a third of its length, at least 2; or one contains the other),
// nearest first, ties by spelling.
[[nodiscard]] std::vector<std::string> nearest_names(std::string_view name, std::span<const std::string> candidates,
                                                     size_t max_results = 3);
// "did you mean 'a' or 'b'?", or an empty text: what goes into Error::next.
[[nodiscard]] std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

// The whole text must be the number; no spaces, no leading '+'. Doubles are the nearest value, "inf" and "nan" refused.
[[nodiscard]] std::optional<int64_t> parse_i64(std::string_view text);
[[nodiscard]] std::optional<uint64_t> parse_u64(std::string_view text);
[[nodiscard]] std::optional<double> parse_f64(std::string_view text);

// Shortest text that reads back as the same value: "0.1", "1e-06", "nan", "inf".
[[nodiscard]] std::string format_f64(double value);
// 1234567 -> "1,234,567".
[[nodiscard]] std::string format_count(int64_t value);
// 1536 -> "1.5 KiB".
[[nodiscard]] std::string format_bytes(uint64_t bytes);

// "500MB" -> 500,000,000; also B, KB, GB (powers of 1000), KiB, MiB, GiB (of 1024), and a bare number of bytes.
[[nodiscard]] std::optional<int64_t> parse_byte_size(std::string_view text);

[[nodiscard]] std::vector<std::string_view> split(std::string_view text, char separator);  // keeps empty pieces
[[nodiscard]] std::string join(std::span<const std::string> pieces, std::string_view separator);
[[nodiscard]] std::string to_lower_ascii(std::string_view text);

}  // namespace mortise
