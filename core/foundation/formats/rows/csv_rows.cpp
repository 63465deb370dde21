// CSV and TSV with a header line (RFC 4180).
//
// A cell may be quoted if its first byte is a quote; then it may hold separators, line ends, and quotes written twice.
// Quotes inside other cells are text. A cell is a text, whatever it looks like, unless the options give it a type: a
// file without types cannot say whether 007 is a number. An empty cell is null, and "" is an empty text. Blank lines are
// no rows. A header without a name gets the one that pandas gives it ("Unnamed: 0"): such is the index that pandas
// writes.
#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "foundation/base/limits.h"
#include "foundation/base/text.h"
#include "foundation/formats/rows/text_rows.h"

namespace mortise {

namespace {

constexpr size_t kMaxCsvColumns = 65'536;

struct CsvCell {
  std::string text;
  bool is_quoted = false;
};

struct CsvColumn {
  std::string name;
  std::string key;  // the name as JSON
  CellType type = CellType::kText;
};

// Cuts a stream into records.
class CsvCutter {
 public:
  CsvCutter(TextCursor& cursor, char separator) : cursor_(&cursor), separator_(separator) {}

  // The cells of the next record; none at the end. Of a record with more than `most` cells the others are not kept.
  Result<std::vector<CsvCell>> next(size_t most);
  [[nodiscard]] int64_t line() const { return line_; }  // on which the record begins
  [[nodiscard]] size_t num_cells() const { return num_cells_; }

 private:
  enum class Place { kCellStart, kPlain, kQuoted, kQuoteInQuoted, kEnd };

  [[nodiscard]] size_t text_at_start(std::string_view bytes) const;
  void take_byte(char c);
  void end_cell();
  [[nodiscard]] Error error(std::string what, std::string next) const {
    return {ErrorKind::kData, std::move(what), row_place(cursor_->path(), line_, true), std::move(next)};
  }

  TextCursor* cursor_;
  char separator_;
  int64_t line_ = 1;
  size_t most_ = 0;
  size_t num_cells_ = 0;
  Place place_ = Place::kCellStart;
  CsvCell cell_;
  std::vector<CsvCell> cells_;
  const char* fault_ = nullptr;
};

void CsvCutter::end_cell() {
  ++num_cells_;
  if (num_cells_ <= most_) cells_.push_back(std::move(cell_));
  cell_ = CsvCell();
  place_ = Place::kCellStart;
}

// The number of bytes at the start that are text of the cell, wherever they stand in it.
size_t CsvCutter::text_at_start(std::string_view bytes) const {
  if (place_ == Place::kQuoted) return std::min(bytes.find('"'), bytes.size());
  if (place_ != Place::kPlain) return 0;
  const char* const begin = bytes.data();
  const char* end = begin;
  while (end != begin + bytes.size() && *end != separator_ && *end != '\n') ++end;
  return static_cast<size_t>(end - begin);
}

void CsvCutter::take_byte(char c) {
  if (place_ == Place::kQuoted) {
    place_ = Place::kQuoteInQuoted;
  } else if (c == '\n') {
    if (place_ == Place::kPlain && cell_.text.ends_with('\r')) cell_.text.pop_back();
    end_cell();
    place_ = Place::kEnd;
  } else if (c == separator_) {
    end_cell();
  } else if (c == '"' && place_ == Place::kCellStart) {
    place_ = Place::kQuoted;
    cell_.is_quoted = true;
  } else if (c == '"' && place_ == Place::kQuoteInQuoted) {
    place_ = Place::kQuoted;
    cell_.text += c;
  } else if (place_ == Place::kQuoteInQuoted) {
    if (c != '\r') fault_ = "a cell continues after its closing quote";  // "...\r\n" ends a line
  } else {
    place_ = Place::kPlain;
    cell_.text += c;
  }
}

Result<std::vector<CsvCell>> CsvCutter::next(size_t most) {
  cells_.clear();
  cell_ = CsvCell();
  place_ = Place::kCellStart;
  most_ = most;
  num_cells_ = 0;
  line_ = cursor_->line();
  fault_ = nullptr;
  size_t num_bytes = 0;
  while (place_ != Place::kEnd) {
    const std::string_view piece = TRY(cursor_->peek());
    if (piece.empty()) break;
    size_t taken = 0;
    while (taken < piece.size() && place_ != Place::kEnd && fault_ == nullptr) {
      const size_t size = text_at_start(piece.substr(taken));
      cell_.text.append(piece, taken, size);
      taken += size;
      if (taken < piece.size()) take_byte(piece[taken++]);
    }
    num_bytes += taken;
    cursor_->take(taken);
    if (fault_ != nullptr) return error(fault_, "double the quotes inside of a quoted cell");
    if (num_bytes > limits::kMaxJsonlLineBytes && place_ == Place::kQuoted)
      return error("a quoted cell is not closed within 64 MiB", "check the quotes there");
    if (num_bytes > limits::kMaxJsonlLineBytes) return row_too_long(row_place(cursor_->path(), line_, true));
  }
  if (place_ == Place::kQuoted) return error("a quoted cell is not closed", "check the quotes there");
  if (place_ != Place::kEnd && num_bytes > 0) end_cell();  // the last line has no line end
  return std::move(cells_);
}

class CsvRows : public RowReader {
 public:
  CsvRows(std::unique_ptr<TextCursor> cursor, char separator)
      : RowReader(cursor->path(), /*has_lines=*/true), cursor_(std::move(cursor)), cutter_(*cursor_, separator) {}

  Result<> read_header(const RowReaderOptions& options);

  Result<std::optional<RawRow>> next() override {
    while (true) {
      std::vector<CsvCell> cells = TRY(cutter_.next(columns_.size()));
      if (cutter_.num_cells() == 0) return std::optional<RawRow>();
      const bool is_blank = cutter_.num_cells() == 1 && cells[0].text.empty() && !cells[0].is_quoted;
      if (is_blank) continue;
      RawRow row;
      row.number = cutter_.line();
      auto text = json_of(cells, row.number);
      if (text.ok())
        row.text = *std::move(text);
      else
        row.fault = std::move(text).error();
      return std::optional<RawRow>(std::move(row));
    }
  }

 private:
  [[nodiscard]] Error bad_cell(const CsvColumn& column, const CsvCell& cell, const char* wanted, int64_t line) const {
    return {ErrorKind::kData,
            fmt::format("the column {} is declared as {}, but holds {}", quote(column.name), wanted, quote(cell.text)),
            place(line), "correct the cell, or data.columns"};
  }

  Result<std::string> json_of(const std::vector<CsvCell>& cells, int64_t line) const;
  Result<std::string> json_of_cell(const CsvColumn& column, const CsvCell& cell, int64_t line) const;

  std::unique_ptr<TextCursor> cursor_;
  CsvCutter cutter_;
  std::vector<CsvColumn> columns_;
};

Result<> CsvRows::read_header(const RowReaderOptions& options) {
  std::vector<CsvCell> cells;
  do {
    cells = TRY(cutter_.next(kMaxCsvColumns));
  } while (cutter_.num_cells() == 1 && cells[0].text.empty());
  const auto bad_header = [&](std::string what, const char* next) {
    return Error{ErrorKind::kData, std::move(what), place(cutter_.line()), next};
  };
  if (cutter_.num_cells() == 0)
    return bad_header("the file has no header line", "write the names of the columns on the first line");
  if (cutter_.num_cells() > kMaxCsvColumns)
    return bad_header(fmt::format("the header has more than {} columns", kMaxCsvColumns),
                      "remove columns that nothing reads");
  std::set<std::string, std::less<>> names;
  for (size_t i = 0; i < cells.size(); ++i) {
    CsvColumn column;
    column.name = cells[i].text.empty() ? fmt::format("Unnamed: {}", i) : std::move(cells[i].text);
    if (find_invalid_utf8(column.name))
      return bad_header("a name in the header is not UTF-8", "convert the file to UTF-8");
    if (!names.insert(column.name).second)
      return bad_header(fmt::format("the header has the column {} twice", quote(column.name)), "rename one of the two");
    column.key = dump_json(Json(column.name));
    if (const auto type = options.cells.find(column.name); type != options.cells.end()) column.type = type->second;
    columns_.push_back(std::move(column));
  }
  return {};
}

Result<std::string> CsvRows::json_of(const std::vector<CsvCell>& cells, int64_t line) const {
  if (cutter_.num_cells() != columns_.size()) {
    return Error{ErrorKind::kData,
                 fmt::format("the row needs one cell per column of the header, but has {} for {}", cutter_.num_cells(),
                             columns_.size()),
                 place(line), "quote cells that hold the separator or line ends"};
  }
  std::string text = "{";
  for (size_t i = 0; i < cells.size(); ++i) {
    text += i == 0 ? "" : ",";
    text += columns_[i].key;
    text += ':';
    text += TRY(json_of_cell(columns_[i], cells[i], line));
  }
  return text + "}";
}

Result<std::string> CsvRows::json_of_cell(const CsvColumn& column, const CsvCell& cell, int64_t line) const {
  if (cell.text.empty() && !cell.is_quoted) return std::string("null");
  if (find_invalid_utf8(cell.text)) {
    return Error{ErrorKind::kData, fmt::format("the cell of the column {} is not UTF-8", quote(column.name)),
                 place(line), "convert the file to UTF-8"};
  }
  switch (column.type) {
    case CellType::kText:
      break;
    case CellType::kInteger:
      if (const auto value = parse_i64(trim(cell.text))) return std::to_string(*value);
      return bad_cell(column, cell, "integer", line);
    case CellType::kNumber:
      if (const auto value = parse_f64(trim(cell.text))) return dump_json(Json(*value));
      return bad_cell(column, cell, "number", line);
    case CellType::kJson: {
      const auto value = parse_json(cell.text, "", {.limits = {.exact_integers = true}});
      if (value.ok()) return dump_json(*value);
      return bad_cell(column, cell, "json", line);
    }
  }
  return dump_json(Json(cell.text));
}

}  // namespace

Result<std::unique_ptr<RowReader>> open_csv_rows(std::unique_ptr<TextCursor> cursor, char separator,
                                                 const RowReaderOptions& options) {
  auto csv = std::make_unique<CsvRows>(std::move(cursor), separator);
  TRY(csv->read_header(options));
  std::unique_ptr<RowReader> rows = std::move(csv);
  return rows;
}

}  // namespace mortise
