// See batches.h.
#include "foundation/formats/arrow/batches.h"

#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/status.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/properties.h>

#include <numeric>
#include <utility>
#include <vector>

namespace mortise::arrow_module {

namespace {

constexpr int64_t kBatchRows = 1024;

class ParquetBatches : public Batches {
 public:
  static arrow::Result<std::unique_ptr<Batches>> open(const std::string& path, arrow::MemoryPool* pool) {
    auto out = std::make_unique<ParquetBatches>();
    ARROW_ASSIGN_OR_RAISE(auto file, arrow::io::ReadableFile::Open(path, pool));
    parquet::ReaderProperties properties(pool);
    properties.enable_buffered_stream();  // a row group need not fit into memory
    parquet::ArrowReaderProperties rows(/*use_threads=*/false);
    rows.set_batch_size(kBatchRows);
    rows.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    ARROW_RETURN_NOT_OK(builder.Open(std::move(file), properties));
    builder.memory_pool(pool)->properties(rows);
    ARROW_RETURN_NOT_OK(builder.Build(&out->reader_));
    ARROW_RETURN_NOT_OK(out->reader_->GetSchema(&out->schema_));
    return out;
  }

  [[nodiscard]] std::shared_ptr<arrow::Schema> schema() const override { return schema_; }

  arrow::Result<std::shared_ptr<arrow::RecordBatch>> next() override {
    while (true) {
      if (group_ == nullptr) {
        if (next_group_ == reader_->num_row_groups()) return std::shared_ptr<arrow::RecordBatch>();
        ARROW_ASSIGN_OR_RAISE(group_, reader_->GetRecordBatchReader({next_group_++}));
      }
      std::shared_ptr<arrow::RecordBatch> batch;
      ARROW_RETURN_NOT_OK(group_->ReadNext(&batch));
      if (batch != nullptr) return batch;
      group_.reset();
    }
  }

  arrow::Result<int64_t> skip_parts(int64_t num_rows) override {
    int64_t num_skipped = 0;
    if (group_ != nullptr) return num_skipped;
    const auto metadata = reader_->parquet_reader()->metadata();
    while (next_group_ < reader_->num_row_groups()) {
      const int64_t rows = metadata->RowGroup(next_group_)->num_rows();
      if (rows < 0 || num_skipped + rows > num_rows) break;
      num_skipped += rows;
      ++next_group_;
    }
    return num_skipped;
  }

 private:
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<arrow::Schema> schema_;
  std::unique_ptr<arrow::RecordBatchReader> group_;  // reads row group next_group_ - 1
  int next_group_ = 0;
};

arrow::ipc::IpcReadOptions ipc_options(arrow::MemoryPool* pool) {
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  options.memory_pool = pool;
  options.use_threads = false;
  return options;
}

class IpcFileBatches : public Batches {
 public:
  IpcFileBatches(std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader) : reader_(std::move(reader)) {}
  [[nodiscard]] std::shared_ptr<arrow::Schema> schema() const override { return reader_->schema(); }

  arrow::Result<std::shared_ptr<arrow::RecordBatch>> next() override {
    if (next_ == reader_->num_record_batches()) return std::shared_ptr<arrow::RecordBatch>();
    ARROW_ASSIGN_OR_RAISE(auto batch, reader_->ReadRecordBatch(next_++));
    ARROW_RETURN_NOT_OK(batch->ValidateFull());
    return batch;
  }
  arrow::Result<int64_t> skip_parts(int64_t) override { return 0; }

 private:
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader_;
  int next_ = 0;
};

class IpcStreamBatches : public Batches {
 public:
  IpcStreamBatches(std::shared_ptr<arrow::ipc::RecordBatchStreamReader> reader) : reader_(std::move(reader)) {}
  [[nodiscard]] std::shared_ptr<arrow::Schema> schema() const override { return reader_->schema(); }

  arrow::Result<std::shared_ptr<arrow::RecordBatch>> next() override {
    std::shared_ptr<arrow::RecordBatch> batch;
    ARROW_RETURN_NOT_OK(reader_->ReadNext(&batch));
    if (batch != nullptr) ARROW_RETURN_NOT_OK(batch->ValidateFull());
    return batch;
  }
  arrow::Result<int64_t> skip_parts(int64_t) override { return 0; }

 private:
  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> reader_;
};

}  // namespace

arrow::Result<std::unique_ptr<Batches>> open_parquet(const std::string& path, arrow::MemoryPool* pool) {
  return ParquetBatches::open(path, pool);
}

arrow::Result<std::unique_ptr<Batches>> open_ipc(const std::string& path, arrow::MemoryPool* pool) {
  ARROW_ASSIGN_OR_RAISE(auto file, arrow::io::MemoryMappedFile::Open(path, arrow::io::FileMode::READ));
  ARROW_ASSIGN_OR_RAISE(const auto magic, file->ReadAt(0, 6));
  if (std::string_view(*magic) == "ARROW1") {
    ARROW_ASSIGN_OR_RAISE(auto reader, arrow::ipc::RecordBatchFileReader::Open(file, ipc_options(pool)));
    return std::make_unique<IpcFileBatches>(std::move(reader));
  }
  ARROW_ASSIGN_OR_RAISE(auto reader, arrow::ipc::RecordBatchStreamReader::Open(file, ipc_options(pool)));
  return std::make_unique<IpcStreamBatches>(std::move(reader));
}

}  // namespace mortise::arrow_module
