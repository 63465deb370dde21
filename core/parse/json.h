// Reads JSON from outside, with limits. It is the only JSON reader of the tree (tests/lint/guarded_readers.sh checks
// this).
//
// Refused, with line and column: anything outside RFC 8259 (NaN, comments, trailing commas, NUL), bad UTF-8, numbers
// that overflow a double, and what exceeds a limit. A UTF-8 byte order mark at the start is skipped. The limits hold
// while the text is read: a value that is too deep or too large never exists, so that whatever walks a value by
// recursion is safe. Time is O(size), memory at most 64 MiB and 4 or 8 times the text (json_reader.h). No exception leaves
// these functions. C++17: the built-in plugins include this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "parse/limits.h"
#include "parse/outcome.h"

// Compiled once, in json_ordered.cpp, not in every file that holds a value.
extern template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace mortise::parse {

struct JsonLimits {
  int max_depth = kMaxJsonDepth;
  std::size_t max_bytes = kMaxJsonBytes;
  std::size_t max_values = kMaxJsonValues;
  bool exact_integers =
      false;  // an integer that 64 bits cannot hold is a fault; otherwise it becomes the nearest double
};

struct JsonFault {
  enum class Kind { kSyntax, kDuplicateKey, kLimit, kMemory };
  Kind kind = Kind::kSyntax;
  std::string what;
  std::size_t offset = 0;  // the byte at which the text is wrong
  std::int64_t line = 1;
  std::int64_t column = 1;

  // "line 3, column 5: syntax error while parsing value - ...".
  [[nodiscard]] std::string to_string() const;
};

// Objects sorted by key, for the plugins. The last value of a key counts, as in Python's json. A lookup takes O(log n).
Outcome<nlohmann::json, JsonFault> parse_json(std::string_view text, const JsonLimits& limits = {});

// Objects in the order of the text, for the engine. A key that an object has twice is a fault. A lookup takes O(n).
Outcome<nlohmann::ordered_json, JsonFault> parse_ordered_json(std::string_view text, const JsonLimits& limits = {});

// The same from CBOR, which our own files and messages use where every double counts: infinities have no JSON.
Outcome<nlohmann::ordered_json, JsonFault> parse_cbor(std::string_view bytes, const JsonLimits& limits = {});

// The fault that parse_json would give, or nothing. Builds no value.
[[nodiscard]] std::optional<JsonFault> check_json(std::string_view text, const JsonLimits& limits = {});

}  // namespace mortise::parse
