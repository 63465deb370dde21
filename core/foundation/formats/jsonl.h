// JSONL: one JSON value per line, read as a stream and written by appending.
//
// Reading maps the file and parses a line at a time: O(line) memory. A line that is not JSON, not UTF-8 (named by byte
// offset), or longer than the cap is an Error with file:line. Lines of only white space are skipped; "\r\n" is fine.
// Thread rule: one thread per reader or writer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "foundation/formats/json.h"

namespace mortise {

struct JsonlRow {
  int64_t line = 0;       // 1-based
  uint64_t offset = 0;    // where the line's first byte is in the file
  std::string_view text;  // the line itself, borrowed from the reader
  Json value;
};

// A line that has not been looked into: what reading by several threads hands on.
struct JsonlLine {
  int64_t line = 0;
  uint64_t offset = 0;
  std::string_view text;  // borrowed from the reader
  bool is_ended = true;   // false: the file's last line, which may still be written
};

class JsonlReader {
 public:
  static Result<JsonlReader> open(Env& env, const Path& path);

  // The next row, or nothing at the end. After an Error the reader is after the bad line, so a caller may count it and
  // continue.
  Result<std::optional<JsonlRow>> next();
  // The same in two steps: the next line that is not blank, or nothing at the end; and the value of such a line, which
  // any number of threads may ask for at once.
  std::optional<JsonlLine> next_line();
  [[nodiscard]] Result<Json> parse(const JsonlLine& line) const;
  [[nodiscard]] const Path& path() const { return file_.path(); }

 private:
  explicit JsonlReader(MappedFile file);

  MappedFile file_;
  uint64_t offset_ = 0;
  int64_t line_ = 0;
  bool in_long_line_ = false;  // the last line was longer than allowed: its rest follows
};

struct JsonlWriterOptions {
  bool append = true;      // false: the file starts empty
  bool sync_each = false;  // fsync after every row
};

class JsonlWriter {
 public:
  static Result<JsonlWriter> open(Env& env, const Path& path, const JsonlWriterOptions& options = {});

  Result<> write(const Json& row);  // one write(2) for the row and its newline
  Result<> sync();
  Result<> close();

 private:
  JsonlWriter(std::unique_ptr<WritableFile> file, bool sync_each);

  std::unique_ptr<WritableFile> file_;
  bool sync_each_;
};

// A file that appears, or replaces an existing one, only when it is complete. Rows go to a temporary file next to it,
// which commit() renames. Without commit() nothing remains, or, if rows are expensive, the written rows as
// PATH.partial. A pipe or /dev/stdout is written directly.
class NewJsonlFile {
 public:
  enum class Unfinished { kGone, kKept };
  static Result<NewJsonlFile> create(Env& env, const Path& path, Unfinished unfinished = Unfinished::kGone);
  NewJsonlFile(NewJsonlFile&& other) noexcept;
  NewJsonlFile& operator=(NewJsonlFile&&) = delete;
  ~NewJsonlFile();

  Result<> write(const Json& row);
  Result<> commit();
  // The place of the rows until commit(); empty if they are written directly, or were committed.
  [[nodiscard]] const Path& temporary() const { return temporary_; }

 private:
  NewJsonlFile(Env& env, Path path, Path temporary, JsonlWriter writer);

  Env* env_;
  Path path_;
  Path temporary_;
  JsonlWriter writer_;
  Unfinished unfinished_ = Unfinished::kGone;
  bool is_empty_ = true;
};

struct KeptRows {
  int64_t num_dropped = 0;  // rows behind `last`, and a half-written last line
  int64_t num_damaged = 0;  // other lines that are no row with an integer `key`
  int64_t first_damaged_line = 0;
  Path set_aside;                   // the file as it was, if a line is damaged
  std::optional<int64_t> last_key;  // the largest key among the rows that are kept
};

// On resume, drops what a later or an unfinished step left: keeps the rows whose integer `key` is at most `last`, cuts
// a half-written last line, and replaces the file atomically. A missing file is fine. If an earlier line is damaged
// (after a power loss: zeros, half a line), it first copies the file to PATH.damaged_1 (_2, ...), and keeps every
// readable row.
Result<KeptRows> keep_jsonl_rows(Env& env, const Path& path, std::string_view key, int64_t last);

}  // namespace mortise
