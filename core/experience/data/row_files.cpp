// See row_files.h.
#include "experience/data/row_files.h"

#include <algorithm>
#include <utility>

#include "foundation/formats/rows/data_files.h"

namespace mortise {

Result<std::vector<DataFile>> list_data_files(Env& env, const std::vector<std::string>& entries,
                                              const std::string& key) {
  std::vector<DataFile> files;
  for (size_t entry = 0; entry < entries.size(); ++entry) {
    for (Path& path : TRY(expand_data_files(env, entries[entry], key)))
      files.push_back({std::move(path), static_cast<int32_t>(entry)});
  }
  return files;
}

Result<bool> RowFiles::open() {
  if (reader_ != nullptr) return true;
  if (next_file_ == files_.size()) return false;
  reader_ = TRY(open_rows(*env_, files_[next_file_].path, options_));
  has_lines_[next_file_] = reader_->has_lines();
  ++next_file_;
  return true;
}

Result<std::optional<FileRow>> RowFiles::next() {
  while (max_rows_ < 0 || num_read_ < max_rows_) {
    if (!TRY(open())) break;
    std::optional<RawRow> row = TRY(reader_->next());
    if (!row) {
      reader_.reset();
      continue;
    }
    ++num_read_;
    return std::optional<FileRow>(FileRow{static_cast<int32_t>(next_file_ - 1), *std::move(row)});
  }
  return std::optional<FileRow>();
}

Result<> RowFiles::skip(int64_t num_rows) {
  if (max_rows_ >= 0) num_rows = std::min(num_rows, max_rows_ - num_read_);
  while (num_rows > 0) {
    if (!TRY(open())) break;
    const int64_t skipped = TRY(reader_->skip(num_rows));
    num_rows -= skipped;
    num_read_ += skipped;
    if (num_rows > 0) reader_.reset();
  }
  return {};
}

Result<Json> RowFiles::parse(const FileRow& row) const {
  const auto file = static_cast<size_t>(row.file);
  return parse_row(row.row, files_[file].path, has_lines_[file]);
}

std::string RowFiles::where(int32_t file, int64_t number) const {
  return row_place(files_[static_cast<size_t>(file)].path, number, has_lines_[static_cast<size_t>(file)]);
}

}  // namespace mortise
