// Reads all rows of a data set once, encodes them on all cores, and hands them on in their order.
//
// A row that cannot be used is an error that names it, or, if the options say so, a reject. Memory: a piece of some
// thousand rows at a time. The result does not depend on the number of threads. Thread rule: scan_rows() calls `encode`
// from many threads and `visit` from the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experience/data/column_types.h"
#include "experience/data/row_files.h"
#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "foundation/batch/prompt_batch.h"
#include "foundation/formats/sha256.h"

namespace mortise {

struct DatasetOptions {
  std::vector<std::string> files;  // names, patterns or folders
  int64_t max_samples = -1;        // rows kept, from the front; negative = all
  bool filter_overlong_prompts = false;
  int64_t vocab_size = 0;                // 0 = ids are not checked
  std::string key;                       // the config key that names the files, for errors
  std::vector<std::string> read_keys{};  // other row keys that something reads, to find misspelt ones
  std::string left_out = "whose prompts are longer than data.max_prompt_length";  // rows that the encoder leaves out
  int num_threads = 0;                                                            // 0: all cores
  bool skip_bad_rows = false;                                                     // they become rejects
  RowReaderOptions reading{};
  DeclaredColumns columns{};                   // data.columns, for rows that are streamed
  std::vector<std::string> watched_columns{};  // whose values has_value() asks for, where rows are streamed
};

// One row to its prompt; nothing: the row is left out. Called from many threads.
using RowEncoder = std::function<Result<std::optional<Prompt>>(const Json& row, const std::string& where)>;

// The rows that data.on_bad_row = "skip" passed over. Of many, the first are kept.
struct Rejects {
  static constexpr size_t kMostKept = 10'000;
  std::vector<Error> kept{};
  int64_t num = 0;

  void add(Error error);
};

struct ScannedRow {
  int32_t file = 0;
  int64_t number = 0;  // in the file, as RawRow::number
  Sha256Digest digest{};
  Prompt prompt{};
};

struct RowScan {
  int64_t num_rows = 0;                // rows in the files
  std::vector<int64_t> rows_of_entry;  // the same by entry of the list
  int64_t num_filtered = 0;            // that the encoder left out
  Rejects rejects;
};

// One row to its prompt.
Result<std::optional<Prompt>> encode_file_row(const RowFiles& files, const FileRow& row, const RowEncoder& encode);

// `visit` gets the rows that are neither left out nor rejects. Refuses a data set without such rows.
Result<RowScan> scan_rows(RowFiles& files, const RowEncoder& encode, const DatasetOptions& options,
                          const std::function<void(ScannedRow)>& visit);

}  // namespace mortise
