// What the tests of the text room share: the golden files, and rows of them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "foundation/formats/json.h"
#include "foundation/formats/jsonl.h"
#include "support/long_run.h"
#include "support/temp_dir.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise::testing_text {

inline Path golden(const std::string& name) { return Path(MORTISE_SOURCE_DIR) / "tests/golden/text" / name; }

// All rows of a JSONL file. A file that cannot be read or has no row is a failure.
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

// Runs tests/unit/text/SCRIPT by the oracles' Python; empty where MORTISE_ORACLES_PYTHON is not set.
inline std::string oracle_command(const std::string& script) {
  const char* const python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0') return {};
  const Path file = Path(MORTISE_SOURCE_DIR) / "tests/unit/text" / script;
  return "HF_HUB_OFFLINE=1 RUST_BACKTRACE=0 '" + std::string(python) + "' '" + file.string() + "'";
}

// The golden folders that hold cases.jsonl, quoted for a command.
// Oracles train and compare with the texts of these folders. Nearly all texts of gpt_oss are also those of llama3.
inline std::string golden_folders() {
  std::string out;
  const std::vector<std::string> names = *default_env().list_dir(golden("tokenizers"));
  for (const std::string& name : names) {
    const Path folder = golden("tokenizers") / name;
    if (name == "gpt_oss") continue;
    if (default_env().exists(folder / "cases.jsonl")) out += " '" + folder.string() + "'";
  }
  return out;
}

using test::is_long;

inline std::vector<int64_t> ids_of(const Json& value) { return value.get<std::vector<int64_t>>(); }

}  // namespace mortise::testing_text
