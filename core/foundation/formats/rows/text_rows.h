// Readers of the formats (row_reader.h). open_rows chooses among them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "foundation/formats/rows/byte_stream.h"
#include "foundation/formats/rows/row_reader.h"

namespace mortise {

// The bytes of a stream, some at a time, with the line that they are on. Skips a byte order mark.
class TextCursor {
 public:
  explicit TextCursor(MappedFile file) : file_(std::move(file)) {}
  TextCursor(const TextCursor&) = delete;
  TextCursor& operator=(const TextCursor&) = delete;

  Result<> open();
  // The next bytes that nothing has taken, at least one unless the file has ended. Borrowed until the next take or peek.
  Result<std::string_view> peek();
  // Takes the first `size` bytes of what peek gave.
  void take(size_t size);

  [[nodiscard]] int64_t line() const { return line_; }      // the next byte's line, from 1
  [[nodiscard]] int64_t column() const { return column_; }  // in bytes, from 1
  [[nodiscard]] uint64_t offset() const { return offset_; }
  [[nodiscard]] const Path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  std::unique_ptr<ByteStream> stream_;
  std::string_view piece_;
  int64_t line_ = 1;
  int64_t column_ = 1;
  uint64_t offset_ = 0;
};

Result<std::unique_ptr<RowReader>> open_jsonl_rows(std::unique_ptr<TextCursor> cursor);
Result<std::unique_ptr<RowReader>> open_json_array_rows(std::unique_ptr<TextCursor> cursor);
Result<std::unique_ptr<RowReader>> open_csv_rows(std::unique_ptr<TextCursor> cursor, char separator,
                                                 const RowReaderOptions& options);

// Through libmortise_arrow.so (arrow_rows.cpp); an error says how to get the module.
Result<std::unique_ptr<RowReader>> open_arrow_rows(const Path& path, bool is_parquet);

// The error of a row that is longer than limits::kMaxJsonlLineBytes.
Error row_too_long(std::string where);

}  // namespace mortise
