// RowReader: the rows of a data file, whatever its format is.
//
//   JSONL                  a JSON object per line
//   JSON                   one array of objects; elements are read one at a time
//   CSV, TSV               a header line, then a record per row, with the quotes of RFC 4180
//   Parquet, Arrow IPC     through libmortise_arrow.so (arrow_module.h)
// The first four may be gzip or zstd files. The name of the file says the format, without ".gz", ".zst" or ".zstd"; for
// ".json" and unknown names, the first bytes do.
//
// A row is the text of one JSON value, which parse() makes a value of. Reading is serial and cheap; any number of
// threads may parse. A row that cannot be used has a `fault`, and the next row can be read; an Error of next() means
// that the rest of the file cannot be read. Memory: one row (64 MiB at most) and a buffer, for Parquet one row group.
// Thread rule: one thread per reader, except parse() and place().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/formats/json.h"

namespace mortise {

struct RawRow {
  int64_t number = 0;  // 1-based: the line on which the row begins, or its place among the rows (has_lines)
  int64_t column = 1;  // in bytes, at which the row begins on its line
  std::string text;    // JSON
  std::optional<Error> fault;
};

// How cells of CSV files, which have no types, are read.
enum class CellType { kText, kInteger, kNumber, kJson };

struct RowReaderOptions {
  std::map<std::string, CellType, std::less<>> cells;  // types of CSV columns; others are texts
};

// True for the names that data files have, such as train.parquet and rows.json.zst. open_rows reads others too.
[[nodiscard]] bool has_data_name(const Path& path);

// "file:line", or "file:row 7" where rows have no lines.
std::string row_place(const Path& path, int64_t number, bool has_lines);
// The value of a row of this file.
Result<Json> parse_row(const RawRow& row, const Path& path, bool has_lines);

class RowReader {
 public:
  virtual ~RowReader() = default;
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  // The next row, or nothing at the end.
  virtual Result<std::optional<RawRow>> next() = 0;
  // Passes over rows, as that many calls of next() would; gives their number, which is smaller at the end.
  virtual Result<int64_t> skip(int64_t num_rows);

  [[nodiscard]] Result<Json> parse(const RawRow& row) const { return parse_row(row, path_, has_lines_); }
  [[nodiscard]] std::string place(int64_t number) const { return row_place(path_, number, has_lines_); }
  [[nodiscard]] const Path& path() const { return path_; }
  [[nodiscard]] bool has_lines() const { return has_lines_; }

 protected:
  RowReader(Path path, bool has_lines) : path_(std::move(path)), has_lines_(has_lines) {}

 private:
  Path path_;
  bool has_lines_;
};

Result<std::unique_ptr<RowReader>> open_rows(Env& env, const Path& path, const RowReaderOptions& options = {});

}  // namespace mortise
