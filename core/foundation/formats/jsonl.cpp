// See jsonl.h.
#include "foundation/formats/jsonl.h"

#include <fmt/core.h>
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "foundation/base/rename_target.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

std::string line_of(const Path& path, int64_t line) { return fmt::format("{}:{}", path.string(), line); }

}  // namespace

JsonlReader::JsonlReader(MappedFile file) : file_(std::move(file)) {}

Result<JsonlReader> JsonlReader::open(Env& env, const Path& path) {
  MappedFile file = TRY(env.map_file(path));
  return JsonlReader(std::move(file));
}

std::optional<JsonlLine> JsonlReader::next_line() {
  const std::string_view all = file_.text();
  while (offset_ < all.size()) {
    if (in_long_line_) {
      offset_ = std::min(all.find('\n', offset_), all.size() - 1) + 1;
      in_long_line_ = false;
      continue;
    }
    const uint64_t start = offset_;
    // Not further than a line may be: a file without ends of lines is not read to its end.
    const std::string_view reach = all.substr(start, limits::kMaxJsonlLineBytes + 1);
    const size_t newline = reach.find('\n');
    std::string_view text = reach.substr(0, newline);
    in_long_line_ = newline == std::string_view::npos && reach.size() > limits::kMaxJsonlLineBytes;
    offset_ = start + text.size() + (newline == std::string_view::npos ? 0 : 1);
    ++line_;
    if (in_long_line_) return JsonlLine{line_, start, text};
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (line_ == 1) text = parse::without_byte_order_mark(text);
    if (!trim(text).empty()) return JsonlLine{line_, start, text, newline != std::string_view::npos};
  }
  return std::nullopt;
}

Result<Json> JsonlReader::parse(const JsonlLine& line) const {
  if (line.text.size() > limits::kMaxJsonlLineBytes) {
    return Error{ErrorKind::kData,
                 fmt::format("the line has more than the {} bytes allowed", limits::kMaxJsonlLineBytes),
                 line_of(path(), line.line), "check that this is a JSONL file"};
  }
  if (const auto bad = find_invalid_utf8(line.text)) {
    const auto begin = static_cast<size_t>(line.text.data() - file_.text().data());
    return Error{ErrorKind::kData, fmt::format("not UTF-8 at byte {} of the file", begin + *bad),
                 fmt::format("{}:{}", line_of(path(), line.line), *bad + 1), "convert the file to UTF-8"};
  }
  JsonOptions options;
  options.first_line = line.line;
  options.limits.exact_integers = true;
  return parse_json(line.text, path().string(), options);
}

Result<std::optional<JsonlRow>> JsonlReader::next() {
  const std::optional<JsonlLine> line = next_line();
  if (!line) return std::optional<JsonlRow>();
  Json value = TRY(parse(*line));
  return std::optional<JsonlRow>(JsonlRow{line->line, line->offset, line->text, std::move(value)});
}

JsonlWriter::JsonlWriter(std::unique_ptr<WritableFile> file, bool sync_each)
    : file_(std::move(file)), sync_each_(sync_each) {}

Result<JsonlWriter> JsonlWriter::open(Env& env, const Path& path, const JsonlWriterOptions& options) {
  auto file = TRY(env.open_for_write(path, options.append ? WriteMode::kAppend : WriteMode::kTruncate));
  return JsonlWriter(std::move(file), options.sync_each);
}

Result<> JsonlWriter::write(const Json& row) {
  TRY(file_->append_text(dump_json(row) + "\n"));
  return sync_each_ ? file_->sync() : Result<>();
}

Result<> JsonlWriter::sync() { return file_->sync(); }
Result<> JsonlWriter::close() { return file_->close(); }

NewJsonlFile::NewJsonlFile(Env& env, Path path, Path temporary, JsonlWriter writer)
    : env_(&env), path_(std::move(path)), temporary_(std::move(temporary)), writer_(std::move(writer)) {}

NewJsonlFile::NewJsonlFile(NewJsonlFile&& other) noexcept
    : env_(other.env_),
      path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, Path())),
      writer_(std::move(other.writer_)),
      unfinished_(other.unfinished_),
      is_empty_(other.is_empty_) {}

NewJsonlFile::~NewJsonlFile() {
  if (temporary_.empty()) return;
  (void)writer_.close();
  if (unfinished_ == Unfinished::kGone || is_empty_) (void)env_->unlink(temporary_);
}

Result<NewJsonlFile> NewJsonlFile::create(Env& env, const Path& path, Unfinished unfinished) {
  const std::optional<Path> target = TRY(rename_target(env, path));
  Path temporary;
  if (target && unfinished == Unfinished::kKept) {
    temporary = target->string() + ".partial";
  } else if (target) {
    temporary = temporary_beside(env, *target);
  }
  auto writer = JsonlWriter::open(env, target ? temporary : path, {.append = false, .sync_each = false});
  if (!writer.ok()) {
    Error error = std::move(writer).error();
    error.where = path.string();
    return error;
  }
  NewJsonlFile file(env, target.value_or(path), std::move(temporary), *std::move(writer));
  file.unfinished_ = unfinished;
  return file;
}

Result<> NewJsonlFile::write(const Json& row) {
  is_empty_ = false;
  return writer_.write(row);
}

Result<> NewJsonlFile::commit() {
  if (temporary_.empty()) return writer_.close();
  TRY(writer_.sync());
  TRY(writer_.close());
  TRY(env_->rename(temporary_, path_));
  temporary_.clear();
  return env_->sync_dir(folder_of(path_));
}

namespace {

// Copied, not renamed: at every instant there is a file at `path`.
Result<Path> copy_aside(Env& env, const Path& path, std::string_view bytes) {
  Path aside;
  for (int i = 1; aside.empty() || env.exists(aside); ++i) aside = fmt::format("{}.damaged_{}", path.string(), i);
  TRY(write_file_atomic(env, aside, bytes));
  return aside;
}

// Nothing for a line that is no row.
std::optional<int64_t> key_of(std::string_view line, std::string_view key) {
  const Result<Json> row = parse_json(line, "");
  if (!row.ok()) return std::nullopt;
  const Result<int64_t> value = json_int(*row, key, "");
  return value.ok() ? std::optional(*value) : std::nullopt;
}

}  // namespace

Result<KeptRows> keep_jsonl_rows(Env& env, const Path& path, std::string_view key, int64_t last) {
  KeptRows out;
  if (!env.exists(path)) return out;
  const std::string all = TRY(env.read_file(path, UINT64_MAX));
  std::string kept;
  int64_t line = 0;
  for (size_t start = 0; start < all.size();) {
    const size_t newline = all.find('\n', start);
    const std::string_view text =
        std::string_view(all).substr(start, newline == std::string::npos ? newline : newline - start);
    start = newline == std::string::npos ? all.size() : newline + 1;
    ++line;
    if (trim(text).empty()) continue;
    const std::optional<int64_t> at = key_of(text, key);
    if (at && *at <= last) {
      kept.append(text).append("\n");
      out.last_key = std::max(*at, out.last_key.value_or(*at));
    } else if (at || newline == std::string::npos) {
      ++out.num_dropped;
    } else if (++out.num_damaged == 1) {
      out.first_damaged_line = line;
    }
  }
  if (out.num_damaged > 0) out.set_aside = TRY(copy_aside(env, path, all));
  if (kept != all) TRY(write_file_atomic(env, path, kept));
  return out;
}

}  // namespace mortise
