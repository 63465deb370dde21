// libmortise_arrow.so: rows of Parquet and Arrow files behind the C interface of module_abi.h. No exception leaves it.
#include <arrow/array.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/status.h>
#include <arrow/type.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "foundation/base/limits.h"
#include "foundation/formats/arrow/batches.h"
#include "foundation/formats/arrow/module_abi.h"
#include "foundation/formats/arrow/row_json.h"

namespace {

using mortise::arrow_module::append_json;
using mortise::arrow_module::Batches;

constexpr int64_t kMaxPoolBytes = int64_t{4} << 30;
constexpr int64_t kRowsAtOnce = 64;  // rows turned into JSON at once

// One for all files, which is never destroyed: a thread of Arrow may free the last buffers of a file after it was closed.
arrow::MemoryPool* memory_pool() {
  static auto* const pool = new arrow::CappedMemoryPool(arrow::system_memory_pool(), kMaxPoolBytes);
  return pool;
}

// Runs f, whose arrow::Status or exception becomes a text.
template <class F>
bool guarded(char* error, size_t error_bytes, F&& f) {
  std::string what;
  try {
    const arrow::Status status = f();
    if (status.ok()) return true;
    what = status.message();
  } catch (const std::exception& thrown) {
    what = thrown.what();
  } catch (...) {
    what = "unknown exception";
  }
  what.resize(std::min(what.size(), what.find('\n')));
  if (error_bytes > 0) {
    const size_t size = std::min(what.size(), error_bytes - 1);
    std::memcpy(error, what.data(), size);
    error[size] = '\0';
  }
  return false;
}

}  // namespace

struct mortise_arrow_rows {
  std::unique_ptr<Batches> batches;
  std::vector<std::string> keys;  // the columns' names, as JSON with a colon
  std::shared_ptr<arrow::RecordBatch> batch;
  int64_t next_row = 0;  // next row of the batch
  std::string text;
  std::vector<uint64_t> offsets;

  arrow::Status open(const std::string& path, int32_t format) {
    ARROW_ASSIGN_OR_RAISE(batches, format == MORTISE_ARROW_PARQUET
                                       ? mortise::arrow_module::open_parquet(path, memory_pool())
                                       : mortise::arrow_module::open_ipc(path, memory_pool()));
    ARROW_RETURN_NOT_OK(mortise::arrow_module::check_types(*batches->schema()));
    for (const auto& field : batches->schema()->fields()) {
      std::string key;
      mortise::arrow_module::append_json_text(field->name(), key);
      keys.push_back(key + ':');
    }
    return arrow::Status::OK();
  }

  // A batch with rows that were not given yet, or null at the end.
  arrow::Status fill() {
    while (batch == nullptr || next_row == batch->num_rows()) {
      next_row = 0;
      ARROW_ASSIGN_OR_RAISE(batch, batches->next());
      if (batch == nullptr) return arrow::Status::OK();
    }
    return arrow::Status::OK();
  }

  arrow::Status next() {
    text.clear();
    offsets.assign(1, 0);
    ARROW_RETURN_NOT_OK(fill());
    if (batch == nullptr) return arrow::Status::OK();
    const int64_t end = std::min(next_row + kRowsAtOnce, batch->num_rows());
    while (next_row < end && text.size() < mortise::limits::kMaxJsonlLineBytes) {
      for (int column = 0; column < batch->num_columns(); ++column) {
        text += column == 0 ? "{" : ",";
        text += keys[static_cast<size_t>(column)];
        append_json(*batch->column(column), next_row, text);
      }
      text += batch->num_columns() == 0 ? "{}" : "}";
      offsets.push_back(text.size());
      ++next_row;
    }
    return arrow::Status::OK();
  }

  arrow::Status skip(int64_t num_rows, int64_t& num_skipped) {
    while (num_skipped < num_rows) {
      if (batch == nullptr || next_row == batch->num_rows()) {
        ARROW_ASSIGN_OR_RAISE(const int64_t parts, batches->skip_parts(num_rows - num_skipped));
        num_skipped += parts;
        if (num_skipped == num_rows) break;
      }
      ARROW_RETURN_NOT_OK(fill());
      if (batch == nullptr) break;
      const int64_t some = std::min(num_rows - num_skipped, batch->num_rows() - next_row);
      num_skipped += some;
      next_row += some;
    }
    return arrow::Status::OK();
  }
};

namespace {

mortise_arrow_rows* open_file(const char* path, int32_t format, char* error, size_t error_bytes) {
  std::unique_ptr<mortise_arrow_rows> rows;
  const bool ok = guarded(error, error_bytes, [&] {
    rows = std::make_unique<mortise_arrow_rows>();
    return rows->open(path, format);
  });
  return ok ? rows.release() : nullptr;
}

int64_t next_rows(mortise_arrow_rows* rows, const char** text, const uint64_t** offsets, char* error,
                  size_t error_bytes) {
  if (!guarded(error, error_bytes, [&] { return rows->next(); })) return -1;
  *text = rows->text.data();
  *offsets = rows->offsets.data();
  return static_cast<int64_t>(rows->offsets.size()) - 1;
}

int64_t skip_rows(mortise_arrow_rows* rows, int64_t num_rows, char* error, size_t error_bytes) {
  int64_t num_skipped = 0;
  return guarded(error, error_bytes, [&] { return rows->skip(num_rows, num_skipped); }) ? num_skipped : -1;
}

void close_rows(mortise_arrow_rows* rows) { delete rows; }

}  // namespace

extern "C" __attribute__((visibility("default"))) const mortise_arrow_module MORTISE_ARROW_MODULE_SYMBOL;
const mortise_arrow_module MORTISE_ARROW_MODULE_SYMBOL = {MORTISE_ARROW_MODULE_VERSION, open_file, next_rows, skip_rows,
                                                          close_rows};
