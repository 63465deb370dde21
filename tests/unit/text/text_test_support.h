// What the tests of the text room share: the golden files, and rows of them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "foundation/formats/json.h"
#include "foundation/formats/jsonl.h"
#include "support/temp_dir.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise::testing_text {

inline Path golden(const std::string& name) { return Path(MORTISE_SOURCE_DIR) / "tests/golden/text" / name; }

// All rows of a JSONL file; a failure where it cannot be read or has none.
inline std::vector<Json> read_rows(const Path& path) {
  std::vector<Json> rows;
  auto reader = JsonlReader::open(default_env(), path);
  if (!reader.ok()) {
    ADD_FAILURE() << reader.error().to_string();
    return rows;
  }
  while (true) {
    auto row = reader->next();
    if (!row.ok()) {
      ADD_FAILURE() << row.error().to_string();
      break;
    }
    if (!row->has_value()) break;
    rows.push_back((*row)->value);
  }
  EXPECT_FALSE(rows.empty()) << path;
  return rows;
}

inline std::vector<int64_t> ids_of(const Json& value) { return value.get<std::vector<int64_t>>(); }

}  // namespace mortise::testing_text
