// Answers about keys: the meaning of one key, table or preset, and the JSON Schema of the whole file.
//
// Pure functions over fields.h and presets.h.
#pragma once

#include <string>
#include <string_view>

#include "foundation/base/result.h"
#include "foundation/formats/json.h"

namespace mortise {

// "[[reward]]", "reward.0.weight", "reward.weight" and keys with verl's prefix to the names of fields.h:
// "reward.*.weight".
std::string canonical_key(std::string_view text);

// A key: type, default, range, verl's and TRL's names, text. A table name lists its keys; "preset" and "preset.NAME"
// the presets; empty: all tables. A typo is an Error with the nearest names. Other frameworks' names are found too, with
// all keys that such a name may mean.
Result<std::string> explain_key(std::string_view key);
// The same as an object (list of objects for a table).
Result<Json> explain_key_json(std::string_view key);

// JSON Schema, draft 2020-12, of a config file; what taplo and editors read.
Json config_schema();

}  // namespace mortise
