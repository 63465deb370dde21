// Chooses the format of a file, and makes values of rows.
#include "foundation/formats/rows/row_reader.h"

#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/limits.h"
#include "foundation/base/text.h"
#include "foundation/formats/rows/text_rows.h"

namespace mortise {

namespace {

enum class RowFormat { kJsonl, kJson, kCsv, kTsv, kParquet, kArrow };

// By the name; nothing: the content decides.
std::optional<RowFormat> format_of_name(const Path& path) {
  Path name = path.filename();
  std::string extension = to_lower_ascii(name.extension().string());
  if (extension == ".gz" || extension == ".zst" || extension == ".zstd")
    extension = to_lower_ascii(name.stem().extension().string());
  if (extension == ".jsonl" || extension == ".ndjson") return RowFormat::kJsonl;
  if (extension == ".csv") return RowFormat::kCsv;
  if (extension == ".tsv" || extension == ".tab") return RowFormat::kTsv;
  if (extension == ".parquet" || extension == ".pq") return RowFormat::kParquet;
  if (extension == ".arrow" || extension == ".feather" || extension == ".ipc") return RowFormat::kArrow;
  return std::nullopt;
}

// What the first bytes of the decompressed file say.
RowFormat format_of_content(std::string_view first_bytes) {
  if (first_bytes.starts_with("PAR1")) return RowFormat::kParquet;
  if (first_bytes.starts_with("ARROW1") || first_bytes.starts_with("\xff\xff\xff\xff")) return RowFormat::kArrow;
  return trim(first_bytes).starts_with('[') ? RowFormat::kJson : RowFormat::kJsonl;
}

}  // namespace

bool has_data_name(const Path& path) {
  const std::string name = to_lower_ascii(path.filename().string());
  return format_of_name(path) || name.ends_with(".json") || name.ends_with(".json.gz") || name.ends_with(".json.zst");
}

std::string row_place(const Path& path, int64_t number, bool has_lines) {
  return fmt::format("{}:{}{}", path.string(), has_lines ? "" : "row ", number);
}

Result<int64_t> RowReader::skip(int64_t num_rows) {
  int64_t num_skipped = 0;
  while (num_skipped < num_rows && TRY(next())) ++num_skipped;
  return num_skipped;
}

Result<Json> parse_row(const RawRow& row, const Path& path, bool has_lines) {
  if (row.fault) return *row.fault;
  const auto at = [&](int64_t line, int64_t column) {  // 1-based in the text of the row
    if (!has_lines) return row_place(path, row.number, false);
    return fmt::format("{}:{}:{}", path.string(), row.number + line - 1, line == 1 ? column + row.column - 1 : column);
  };
  if (const auto bad = find_invalid_utf8(row.text)) {
    const TextPosition position = text_position(row.text, *bad);
    return Error{ErrorKind::kData, "not UTF-8", at(position.line, position.column), "convert the file to UTF-8"};
  }
  auto parsed = parse::parse_ordered_json(row.text, {.exact_integers = true});
  if (parsed) return *std::move(parsed);
  const parse::JsonFault& fault = parsed.fault();
  return Error{ErrorKind::kData, fault.what, at(fault.line, fault.column), "correct the JSON there"};
}

Error row_too_long(std::string where) {
  return {ErrorKind::kData, fmt::format("the row has more than the {} bytes allowed", limits::kMaxJsonlLineBytes),
          std::move(where), "check that the file holds rows"};
}

Result<std::unique_ptr<RowReader>> open_rows(Env& env, const Path& path, const RowReaderOptions& options) {
  MappedFile file = TRY(env.map_file(path));
  const Compression compression = compression_of(file.text());
  auto cursor = std::make_unique<TextCursor>(std::move(file));
  TRY(cursor->open());
  const std::string_view first = TRY(cursor->peek());
  const RowFormat format = format_of_name(path).value_or(format_of_content(first));
  switch (format) {
    case RowFormat::kJsonl:
      return open_jsonl_rows(std::move(cursor));
    case RowFormat::kJson:
      return open_json_array_rows(std::move(cursor));
    case RowFormat::kCsv:
      return open_csv_rows(std::move(cursor), ',', options);
    case RowFormat::kTsv:
      return open_csv_rows(std::move(cursor), '\t', options);
    case RowFormat::kParquet:
    case RowFormat::kArrow:
      break;
  }
  if (compression != Compression::kNone) {
    return Error{ErrorKind::kData, "a Parquet or Arrow file cannot be compressed as a whole", path.string(),
                 "decompress it; such files compress their columns themselves"};
  }
  return open_arrow_rows(path, format == RowFormat::kParquet);
}

}  // namespace mortise
