// See TextCursor in text_rows.h.
#include <algorithm>

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
  const auto newlines = std::count(taken.begin(), taken.end(), '\n');
  if (newlines > 0) {
    line_ += newlines;
    column_ = static_cast<int64_t>(taken.size() - taken.rfind('\n'));
  } else {
    column_ += static_cast<int64_t>(taken.size());
  }
  offset_ += taken.size();
  piece_.remove_prefix(taken.size());
}

}  // namespace mortise
