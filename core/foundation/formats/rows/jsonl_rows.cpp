// JSONL: one object per line; lines of white space are no rows.
#include <utility>

#include "foundation/base/limits.h"
#include "foundation/base/text.h"
#include "foundation/formats/rows/text_rows.h"

namespace mortise {

namespace {

class JsonlRows : public RowReader {
 public:
  explicit JsonlRows(std::unique_ptr<TextCursor> cursor)
      : RowReader(cursor->path(), /*has_lines=*/true), cursor_(std::move(cursor)) {}

  Result<std::optional<RawRow>> next() override {
    while (true) {
      RawRow row;
      row.number = cursor_->line();
      if (!TRY(read_line(row))) return std::optional<RawRow>();
      if (row.fault || !trim(row.text).empty()) return std::optional<RawRow>(std::move(row));
    }
  }

 private:
  // False: the file has ended. Of a line that is too long, nothing is kept but the fault.
  Result<bool> read_line(RawRow& row) {
    bool any = false;
    while (true) {
      const std::string_view piece = TRY(cursor_->peek());
      if (piece.empty()) break;
      any = true;
      const size_t newline = piece.find('\n');
      const std::string_view part = piece.substr(0, newline);
      if (!row.fault && row.text.size() + part.size() > limits::kMaxJsonlLineBytes) {
        row.fault = row_too_long(place(row.number));
        row.text = std::string();
      }
      if (!row.fault) row.text += part;
      cursor_->take(newline == std::string_view::npos ? part.size() : part.size() + 1);
      if (newline != std::string_view::npos) break;
    }
    if (row.text.ends_with('\r')) row.text.pop_back();
    return any;
  }

  std::unique_ptr<TextCursor> cursor_;
};

}  // namespace

Result<std::unique_ptr<RowReader>> open_jsonl_rows(std::unique_ptr<TextCursor> cursor) {
  std::unique_ptr<RowReader> rows = std::make_unique<JsonlRows>(std::move(cursor));
  return rows;
}

}  // namespace mortise
