// The record batches of a Parquet file, an Arrow IPC file or an Arrow IPC stream, one after another.
//
// Memory: one batch of at most 1024 rows and the pages under it; an allocation above 4 GiB in all fails. The batches of
// IPC files, which Arrow maps without a look, are checked before they are used. No threads. Thread rule: one thread.
#pragma once

#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/result.h>

#include <cstdint>
#include <memory>
#include <string>

namespace mortise::arrow_module {

class Batches {
 public:
  virtual ~Batches() = default;
  [[nodiscard]] virtual std::shared_ptr<arrow::Schema> schema() const = 0;
  // Null at the end.
  virtual arrow::Result<std::shared_ptr<arrow::RecordBatch>> next() = 0;
  // Passes over whole parts of the file with at most `num_rows` rows in all; gives the number of rows. Cheap, and may
  // do nothing.
  virtual arrow::Result<int64_t> skip_parts(int64_t num_rows) = 0;
};

arrow::Result<std::unique_ptr<Batches>> open_parquet(const std::string& path, arrow::MemoryPool* pool);
arrow::Result<std::unique_ptr<Batches>> open_ipc(const std::string& path, arrow::MemoryPool* pool);

}  // namespace mortise::arrow_module
