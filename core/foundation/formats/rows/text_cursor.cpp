// See TextCursor in text_rows.h.
#include "foundation/formats/rows/text_rows.h"
#include "parse/text.h"

namespace mortise {

Result<> TextCursor::open() {
  stream_ = TRY(open_byte_stream(file_));
  const std::string_view first = TRY(peek());
  const size_t mark = first.size() - parse::without_byte_order_mark(first).size();
  piece_.remove_prefix(mark);
  offset_ += mark;
  return {};
}

Result<std::string_view> TextCursor::peek() {
  if (piece_.empty()) piece_ = TRY(stream_->next());
  return piece_;
}

void TextCursor::take(size_t size) {
  const std::string_view taken = piece_.substr(0, size);
  size_t line_start = 0;
  for (size_t newline = taken.find('\n'); newline != std::string_view::npos; newline = taken.find('\n', line_start)) {
    ++line_;
    column_ = 1;
    line_start = newline + 1;
  }
  column_ += static_cast<int64_t>(taken.size() - line_start);
  offset_ += taken.size();
  piece_.remove_prefix(taken.size());
}

}  // namespace mortise
