// ShuffledRows: one pass over the rows of files, in the order of a shuffle buffer.
//
// The buffer holds the next rows of the files. Each row that is given is drawn from it at random, and the next row of
// the files takes its place, as in datasets' IterableDataset.shuffle. A buffer of one row keeps the order of the files.
// The draws are a function of (seed, number of rows given). A later place is therefore reached without making the rows
// before it: the draws are repeated on row numbers, and the files are read for the rows that the buffer then holds.
// Memory: the rows of the buffer. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "experience/data/row_files.h"
#include "foundation/base/result.h"

namespace mortise {

// A row and its place among all rows of its files.
struct PlacedRow {
  int64_t place = 0;
  FileRow row;
};

class ShuffledRows {
 public:
  // `num_rows`: of the files; as many are read.
  ShuffledRows(RowFiles files, int64_t num_rows, int64_t buffer_size, uint64_t seed)
      : files_(std::make_unique<RowFiles>(std::move(files))),
        num_rows_(num_rows),
        buffer_size_(buffer_size),
        seed_(seed) {}

  // The next row; nothing at the end.
  Result<std::optional<PlacedRow>> next();
  // Passes over the first rows. Only before next().
  Result<> skip(int64_t num_given);
  [[nodiscard]] int64_t num_given() const { return num_given_; }
  [[nodiscard]] const RowFiles& files() const { return *files_; }

 private:
  [[nodiscard]] Result<PlacedRow> read();
  [[nodiscard]] size_t draw(size_t size) const;
  [[nodiscard]] std::vector<int64_t> buffered_places(int64_t num_given);

  std::unique_ptr<RowFiles> files_;
  int64_t num_rows_;
  int64_t buffer_size_;
  uint64_t seed_;
  int64_t num_given_ = 0;
  std::vector<PlacedRow> buffer_;
};

}  // namespace mortise
