// RowFiles: the rows of several data files, one file after another, from any place on.
//
// Cost: the row's bytes; values are made of rows by parse(), from any thread. Thread rule: one thread, except parse()
// and where() of files that were opened.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "foundation/formats/rows/row_reader.h"

namespace mortise {

// A file of a data set, and which entry of the list in the configuration it belongs to.
struct DataFile {
  Path path;
  int32_t entry = 0;
};

// The files of all entries (data_files.h), in their order. `key`: the configuration key of the list.
Result<std::vector<DataFile>> list_data_files(Env& env, const std::vector<std::string>& entries,
                                              const std::string& key);

struct FileRow {
  int32_t file = 0;  // place in the list
  RawRow row;
};

class RowFiles {
 public:
  // max_rows < 0: all.
  RowFiles(Env& env, std::vector<DataFile> files, RowReaderOptions options, int64_t max_rows = -1)
      : env_(&env),
        files_(std::move(files)),
        has_lines_(files_.size(), true),
        options_(std::move(options)),
        max_rows_(max_rows) {}

  // The next row, or nothing at the end of the last file. An error ends the reading.
  Result<std::optional<FileRow>> next();
  // Passes over rows; fewer at the end.
  Result<> skip(int64_t num_rows);
  [[nodiscard]] int64_t num_read() const { return num_read_; }  // rows so far

  [[nodiscard]] Result<Json> parse(const FileRow& row) const;
  [[nodiscard]] std::string where(int32_t file, int64_t number) const;
  [[nodiscard]] const std::vector<DataFile>& files() const { return files_; }

 private:
  // Opens the next file if none is open; false: there is none.
  Result<bool> open();

  Env* env_;
  std::vector<DataFile> files_;
  std::vector<bool> has_lines_;
  RowReaderOptions options_;
  int64_t max_rows_;
  int64_t num_read_ = 0;
  size_t next_file_ = 0;
  std::unique_ptr<RowReader> reader_;  // reads the file next_file_ - 1
};

}  // namespace mortise
