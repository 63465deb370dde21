// A JSON file that is one array: its elements are cut out of the text without building the array.
//
// The cut follows strings and brackets only; parse() checks the text of each element.
#include <fmt/core.h>

#include <utility>

#include "foundation/base/limits.h"
#include "foundation/base/text.h"
#include "foundation/formats/rows/text_rows.h"

namespace mortise {

namespace {

bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Where one element ends: at a comma or a closing bracket outside of all strings and brackets of its own.
class ElementEnd {
 public:
  // The number of bytes of `piece` that belong to the element; fewer than all: it ends there.
  size_t scan(std::string_view piece) {
    size_t i = 0;
    for (; i < piece.size(); ++i) {
      const char c = piece[i];
      if (in_string_) {
        if (escaped_)
          escaped_ = false;
        else if (c == '\\')
          escaped_ = true;
        else if (c == '"')
          in_string_ = false;
      } else if (c == '"') {
        in_string_ = true;
      } else if (c == '[' || c == '{') {
        ++depth_;
      } else if (c == ']' || c == '}') {
        if (depth_ == 0) break;
        --depth_;
      } else if (c == ',' && depth_ == 0) {
        break;
      }
    }
    return i;
  }

 private:
  int64_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

class JsonArrayRows : public RowReader {
 public:
  explicit JsonArrayRows(std::unique_ptr<TextCursor> cursor)
      : RowReader(cursor->path(), /*has_lines=*/true), cursor_(std::move(cursor)) {}

  Result<std::optional<RawRow>> next() override {
    if (state_ == State::kEnd) return std::optional<RawRow>();
    if (state_ == State::kStart) TRY(expect('[', "the file must begin with '['"));
    const char first = TRY(next_sign());
    if (first == ']' && state_ == State::kStart) return end();
    if (state_ == State::kBetween) {
      if (first == ']') return end();
      if (first != ',') return wrong("expected ',' or ']' between the elements of the array");
      cursor_->take(1);
      TRY(next_sign());
    }
    state_ = State::kBetween;
    return element();
  }

 private:
  enum class State { kStart, kBetween, kEnd };

  [[nodiscard]] Error wrong(std::string what) const {
    return {ErrorKind::kData, std::move(what),
            fmt::format("{}:{}:{}", path().string(), cursor_->line(), cursor_->column()), "correct the JSON there"};
  }

  // The next byte that is no white space; it is not taken. An error at the end of the file.
  Result<char> next_sign() {
    while (true) {
      const std::string_view piece = TRY(cursor_->peek());
      if (piece.empty()) return wrong("the JSON array is not closed");
      size_t spaces = 0;
      while (spaces < piece.size() && is_json_space(piece[spaces])) ++spaces;
      const bool found = spaces < piece.size();
      const char sign = found ? piece[spaces] : '\0';
      cursor_->take(spaces);
      if (found) return sign;
    }
  }

  Result<> expect(char sign, const char* what) {
    if (TRY(next_sign()) != sign) return wrong(what);
    cursor_->take(1);
    return {};
  }

  Result<std::optional<RawRow>> end() {
    cursor_->take(1);
    state_ = State::kEnd;
    while (true) {
      const std::string_view piece = TRY(cursor_->peek());
      if (piece.empty()) return std::optional<RawRow>();
      if (!trim(piece).empty()) return wrong("there is text behind the end of the JSON array");
      cursor_->take(piece.size());
    }
  }

  Result<std::optional<RawRow>> element() {
    RawRow row;
    row.number = cursor_->line();
    row.column = cursor_->column();
    ElementEnd end;
    while (true) {
      const std::string_view piece = TRY(cursor_->peek());
      if (piece.empty()) return wrong("the JSON array is not closed");
      const size_t size = end.scan(piece);
      if (row.text.size() + size > limits::kMaxJsonlLineBytes) return row_too_long(place(row.number));
      row.text += piece.substr(0, size);
      const bool is_whole = size < piece.size();
      cursor_->take(size);
      if (is_whole) break;
    }
    if (row.text.empty()) return wrong("the array has an element without a value");
    return std::optional<RawRow>(std::move(row));
  }

  std::unique_ptr<TextCursor> cursor_;
  State state_ = State::kStart;
};

}  // namespace

Result<std::unique_ptr<RowReader>> open_json_array_rows(std::unique_ptr<TextCursor> cursor) {
  std::unique_ptr<RowReader> rows = std::make_unique<JsonArrayRows>(std::move(cursor));
  return rows;
}

}  // namespace mortise
