// See row_scan.h.
#include "experience/data/row_scan.h"

#include <fmt/core.h>

#include <mutex>
#include <span>
#include <utility>

#include "experience/data/misspelt_keys.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/base/thread_pool.h"

namespace mortise {

namespace {

constexpr size_t kPieceRows = 8192;
constexpr size_t kPieceBytes = size_t{32} << 20;

// What one row became.
struct Encoded {
  Sha256Digest digest{};
  std::optional<Prompt> prompt;
  std::optional<Error> fault;
};

class RowScanner {
 public:
  RowScanner(RowFiles& files, const RowEncoder& encode, const DatasetOptions& options)
      : files_(files), encode_(encode), options_(options), pool_(options.num_threads), misspelt_(options.read_keys) {
    scan_.rows_of_entry.resize(options.files.size());
  }

  Result<RowScan> run(const std::function<void(ScannedRow)>& visit) {
    while (true) {
      const std::vector<FileRow> rows = TRY(read_piece());
      if (rows.empty()) break;
      std::vector<Encoded> encoded = encode_piece(rows);
      for (size_t i = 0; i < rows.size(); ++i) take(rows[i], std::move(encoded[i]), visit);
    }
    if (first_fault_) {
      if (num_faults_ > 1)
        first_fault_->what += fmt::format(" ({} of the rows cannot be used)", format_count(num_faults_));
      return *std::move(first_fault_);
    }
    TRY(report());
    return std::move(scan_);
  }

 private:
  Result<std::vector<FileRow>> read_piece() {
    std::vector<FileRow> rows;
    size_t num_bytes = 0;
    while (rows.size() < kPieceRows && num_bytes < kPieceBytes) {
      std::optional<FileRow> row = TRY(files_.next());
      if (!row) break;
      num_bytes += row->row.text.size();
      rows.push_back(*std::move(row));
    }
    return rows;
  }

  std::vector<Encoded> encode_piece(const std::vector<FileRow>& rows) {
    std::vector<Encoded> out(rows.size());
    std::mutex mutex;
    pool_.parallel_for(0, static_cast<int64_t>(rows.size()), 64, [&](int64_t begin, int64_t end) {
      MisspeltKeys keys(options_.read_keys);
      for (int64_t i = begin; i < end; ++i) encode_row(rows[static_cast<size_t>(i)], keys, out[static_cast<size_t>(i)]);
      const std::lock_guard lock(mutex);
      misspelt_.merge(keys);
    });
    return out;
  }

  void encode_row(const FileRow& row, MisspeltKeys& keys, Encoded& out) const {
    out.digest = sha256(row.row.text);
    const auto value = files_.parse(row);
    if (!value.ok()) {
      out.fault = value.error();
      return;
    }
    keys.see(*value, row.file, row.row.number);
    auto prompt = encode_(*value, files_.where(row.file, row.row.number));
    if (prompt.ok())
      out.prompt = *std::move(prompt);
    else
      out.fault = std::move(prompt).error();
  }

  void take(const FileRow& row, Encoded encoded, const std::function<void(ScannedRow)>& visit) {
    ++scan_.num_rows;
    ++scan_.rows_of_entry[static_cast<size_t>(files_.files()[static_cast<size_t>(row.file)].entry)];
    if (encoded.fault && options_.skip_bad_rows) {
      scan_.rejects.add(*std::move(encoded.fault));
    } else if (encoded.fault) {
      ++num_faults_;
      if (!first_fault_) first_fault_ = std::move(encoded.fault);
    } else if (!encoded.prompt) {
      ++scan_.num_filtered;
    } else if (!first_fault_) {
      ++num_taken_;
      visit({row.file, row.row.number, encoded.digest, *std::move(encoded.prompt)});
    }
  }

  Result<> report() const {
    std::vector<std::string> names;
    for (const DataFile& file : files_.files()) names.push_back(file.path.string());
    for (const std::string& warning : misspelt_.warnings(names)) log_warn(warning);
    const std::string first = names.empty() ? "" : names.front();
    if (scan_.num_filtered > 0) {
      log_info(fmt::format("{}: left out {} of {} rows {}", options_.key, format_count(scan_.num_filtered),
                           format_count(scan_.num_rows), options_.left_out));
    }
    if (scan_.rejects.num > 0) {
      log_warn(fmt::format("{}: skipped {} of {} rows that cannot be used; the first: {}", options_.key,
                           format_count(scan_.rejects.num), format_count(scan_.num_rows),
                           scan_.rejects.kept.front().to_string()));
    }
    if (num_taken_ > 0) return {};
    if (scan_.rejects.num > 0) {
      Error error = scan_.rejects.kept.front();
      error.what = "no row is left: the data set has only rows that cannot be used; the first: " + error.what;
      return error;
    }
    if (scan_.num_filtered > 0) {
      return Error{ErrorKind::kData, fmt::format("no row is left: the data set has only rows {}", options_.left_out),
                   first, "raise the limit, or correct " + options_.key};
    }
    return Error{ErrorKind::kData, "the data set has no rows", first, "correct " + options_.key};
  }

  RowFiles& files_;
  const RowEncoder& encode_;
  const DatasetOptions& options_;
  ThreadPool pool_;
  MisspeltKeys misspelt_;
  RowScan scan_;
  int64_t num_taken_ = 0;
  int64_t num_faults_ = 0;
  std::optional<Error> first_fault_;
};

}  // namespace

void Rejects::add(Error error) {
  ++num;
  if (kept.size() < kMostKept) kept.push_back(std::move(error));
}

Result<std::optional<Prompt>> encode_file_row(const RowFiles& files, const FileRow& row, const RowEncoder& encode) {
  const Json value = TRY(files.parse(row));
  return encode(value, files.where(row.file, row.row.number));
}

Result<RowScan> scan_rows(RowFiles& files, const RowEncoder& encode, const DatasetOptions& options,
                          const std::function<void(ScannedRow)>& visit) {
  return RowScanner(files, encode, options).run(visit);
}

}  // namespace mortise
