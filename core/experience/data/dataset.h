// Dataset: the rows of the data files, encoded once at the start, in the order of the files.
//
// All problems of a file are found before the first step (row_scan.h): an unreadable line, a row without a prompt, a
// token id outside the vocabulary, a prompt that is too long. load() keeps the rows in memory. scan() keeps what a run
// must know of all rows, and lets stream_feed.cpp read them again. Thread rule: read-only after load or scan.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "experience/data/column_types.h"
#include "experience/data/prompt_encoder.h"
#include "experience/data/row_scan.h"
#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

// Encodes prompts, with the length policy of the options. Borrows `encoder`.
[[nodiscard]] RowEncoder prompt_row_encoder(const PromptEncoder& encoder, const DatasetOptions& options);

// What is known of rows that are not in memory. Its size does not depend on their number.
struct StreamedRows {
  std::vector<DataFile> files;
  std::vector<FileInfo> infos;         // what the files were at the scan
  std::vector<int64_t> rows_of_entry;  // all rows, also those that are left out
  ColumnCensus census;
  std::map<int64_t, std::string> places;  // where the rows are that the census may ask for
  std::set<std::string> watched;          // those of options.watched_columns that have a value somewhere
};

class Dataset {
 public:
  static Result<Dataset> load(Env& env, const PromptEncoder& encoder, const DatasetOptions& options);
  // filter_overlong_prompts and vocab_size are the encoder's own business here.
  static Result<Dataset> load(Env& env, const RowEncoder& encode, const DatasetOptions& options);
  // `encode` is kept, and called while rows are streamed.
  static Result<Dataset> scan(Env& env, const RowEncoder& encode, const DatasetOptions& options);

  [[nodiscard]] int64_t size() const { return num_rows_; }
  [[nodiscard]] bool is_streamed() const { return streamed_.has_value(); }
  // Precondition: the rows are not streamed.
  [[nodiscard]] const Prompt& operator[](int64_t row) const { return prompts_[static_cast<size_t>(row)]; }
  [[nodiscard]] int64_t num_filtered() const { return num_filtered_; }
  [[nodiscard]] const Rejects& rejects() const { return rejects_; }
  // Digest of the rows as in the files, in order. It shows whether a run continues with the rows it began with.
  [[nodiscard]] const std::string& digest() const { return digest_; }
  // "file:line" of a row, or "file:row 7". Streamed rows have a place only if the census may ask for it.
  [[nodiscard]] std::string where(int64_t row) const;
  // The first row of an entry of options.files; of the entry behind the last, size().
  [[nodiscard]] int64_t entry_begin(size_t entry) const { return entry_begins_[entry]; }

  // Has some row a value at this path (column_at)? Of streamed rows, asked only of options.watched_columns.
  [[nodiscard]] bool has_value(const std::string& path) const;
  // In the order of their first appearance.
  [[nodiscard]] std::vector<std::string> column_names() const;

  // For streaming.
  [[nodiscard]] const StreamedRows& streamed() const { return *streamed_; }
  [[nodiscard]] const DatasetOptions& options() const { return options_; }
  [[nodiscard]] const RowEncoder& encoder() const { return encode_; }
  [[nodiscard]] RowFiles open_files(std::vector<DataFile> files) const {
    return RowFiles(*env_, std::move(files), options_.reading);
  }
  // An error names a file that has another size or time than when all rows were read.
  [[nodiscard]] Result<> check_files_unchanged() const;

 private:
  Dataset(Env& env, DatasetOptions options) : env_(&env), options_(std::move(options)) {}
  // Reads all rows; `keep` gets each.
  template <class Keep>
  Result<> read(const RowEncoder& encode, Keep&& keep);

  Env* env_;
  DatasetOptions options_;
  RowEncoder encode_;  // where rows are streamed
  int64_t num_rows_ = 0;
  std::vector<Prompt> prompts_;
  std::optional<RowFiles> files_;
  std::vector<std::pair<int32_t, int64_t>> places_;  // file, number in it
  std::vector<int64_t> entry_begins_;
  std::vector<int64_t> all_rows_of_entry_;
  int64_t num_filtered_ = 0;
  Rejects rejects_;
  std::string digest_;
  std::optional<StreamedRows> streamed_;
};

}  // namespace mortise
