// What the tests of the text room share: golden files, folders made for one test.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "foundation/formats/json.h"
#include "foundation/formats/jsonl.h"
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

// A folder of its own under the system's temporary directory, removed at the end.
class TempFolder {
 public:
  TempFolder() : path_(std::filesystem::temp_directory_path() / unique_name(default_env(), "mortise_text_")) {
    std::filesystem::create_directories(path_);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] const Path& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

 private:
  Path path_;
};

}  // namespace mortise::testing_text
