// JSON for the engine: parse/json.h with file names and Result, and writing.
//
// Refused, with file:line:column: anything outside RFC 8259 (NaN, comments, trailing commas, NUL), duplicate keys, bad
// UTF-8, numbers that overflow a double, and what exceeds the limits. Objects keep the file's order, so a lookup by key
// is a linear walk: iterate over large objects (a vocabulary) instead of indexing them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "foundation/base/env.h"
#include "foundation/base/limits.h"
#include "foundation/base/result.h"
#include "parse/json.h"

namespace mortise {

using Json = nlohmann::ordered_json;

struct JsonOptions {
  parse::JsonLimits limits = {};
  ErrorKind error_kind = ErrorKind::kData;
  int64_t first_line = 1;          // line number of the text's first line (rows of a JSONL file)
  size_t* error_offset = nullptr;  // where given: gets the byte at which the text is wrong
};

// `where` is the file name used in errors.
Result<Json> parse_json(std::string_view text, std::string_view where, const JsonOptions& options = {});
Result<Json> read_json_file(Env& env, const Path& path, const JsonOptions& options = {});

// Doubles in the shortest form that reads back as the same bits; non-finite numbers become null; bad UTF-8 inside
// strings becomes U+FFFD. indent < 0: one line.
[[nodiscard]] std::string dump_json(const Json& value, int indent = -1);

// Typed access for readers of files: an Error "key 'x' is missing" / "key 'x' must be a string, is a number".
Result<std::string> json_string(const Json& object, std::string_view key, std::string_view where);
Result<int64_t> json_int(const Json& object, std::string_view key, std::string_view where);
Result<double> json_double(const Json& object, std::string_view key, std::string_view where);
Result<bool> json_bool(const Json& object, std::string_view key, std::string_view where);
// The member, or null where `object` is no object or has no such key. Borrowed.
[[nodiscard]] const Json* json_find(const Json& object, std::string_view key);

}  // namespace mortise
