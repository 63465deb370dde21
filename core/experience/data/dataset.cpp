// Reads and encodes the data files in parallel, and reports every bad row with its place.
#include "experience/data/dataset.h"

#include <fmt/core.h>
#include <mutex>
#include <optional>

#include "experience/data/misspelt_keys.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/base/thread_pool.h"
#include "foundation/formats/jsonl.h"
#include "foundation/formats/sha256.h"

namespace mortise {

namespace {

// The lines of all files, not yet parsed: that is done on all cores too.
struct RawRows {
  std::vector<JsonlReader> files;
  std::vector<std::pair<int32_t, JsonlLine>> rows;  // file index, line
};

Result<RawRows> read_rows(Env& env, const DatasetOptions& options) {
  RawRows raw;
  for (size_t f = 0; f < options.files.size(); ++f) {
    if (!env.exists(options.files[f])) {
      return Error{ErrorKind::kData, "the data file does not exist", options.files[f], "correct " + options.key};
    }
    raw.files.push_back(TRY(JsonlReader::open(env, options.files[f])));
    while (options.max_samples < 0 || static_cast<int64_t>(raw.rows.size()) < options.max_samples) {
      const std::optional<JsonlLine> line = raw.files.back().next_line();
      if (!line) break;
      raw.rows.emplace_back(static_cast<int32_t>(f), *line);
    }
  }
  return raw;
}

}  // namespace

std::string Dataset::where(int64_t row) const {
  const auto& [file, line] = places_[static_cast<size_t>(row)];
  return fmt::format("{}:{}", files_[static_cast<size_t>(file)], line);
}

Result<Dataset> Dataset::load(Env& env, const PromptEncoder& encoder, const DatasetOptions& options) {
  const auto encode = [&](const Json& row, const std::string& where) -> Result<std::optional<Prompt>> {
    Prompt prompt = TRY(encoder.encode(row, where, options.vocab_size));
    if (options.filter_overlong_prompts && encoder.is_overlong(prompt)) return std::optional<Prompt>();
    TRY(encoder.apply_length_policy(prompt, where));
    return std::optional<Prompt>(std::move(prompt));
  };
  return load(env, RowEncoder(encode), options);
}

Result<Dataset> Dataset::load(Env& env, const RowEncoder& encode, const DatasetOptions& options) {
  const RawRows raw = TRY(read_rows(env, options));
  const auto encode_row = [&](const auto& row, MisspeltKeys& keys) -> Result<std::optional<Prompt>> {
    const auto& [file, line] = row;
    const auto f = static_cast<size_t>(file);
    const Json value = TRY(raw.files[f].parse(line));
    keys.see(value, file, line.line);
    return encode(value, fmt::format("{}:{}", options.files[f], line.line));
  };
  std::vector<std::optional<Prompt>> encoded(raw.rows.size());
  std::vector<Sha256Digest> digests(raw.rows.size());
  std::mutex mutex;
  std::optional<std::pair<int64_t, Error>> first_error;  // the earliest row's, in whichever thread it is found
  int64_t num_bad = 0;
  MisspeltKeys misspelt(options.read_keys);
  ThreadPool pool(options.num_threads);
  pool.parallel_for(0, static_cast<int64_t>(raw.rows.size()), 64, [&](int64_t begin, int64_t end) {
    MisspeltKeys keys(options.read_keys);
    for (int64_t i = begin; i < end; ++i) {
      const auto& row = raw.rows[static_cast<size_t>(i)];
      digests[static_cast<size_t>(i)] = sha256(row.second.text);
      auto prompt = encode_row(row, keys);
      if (prompt.ok()) {
        encoded[static_cast<size_t>(i)] = *std::move(prompt);
        continue;
      }
      const std::lock_guard lock(mutex);
      ++num_bad;
      if (!first_error || i < first_error->first) first_error = {i, std::move(prompt).error()};
    }
    const std::lock_guard lock(mutex);
    misspelt.merge(keys);
  });
  if (first_error) {
    if (num_bad > 1) first_error->second.what += fmt::format(" ({} of the rows cannot be used)", format_count(num_bad));
    return std::move(first_error->second);
  }
  for (const std::string& warning : misspelt.warnings(options.files)) log_warn(warning);

  Dataset dataset;
  dataset.files_ = options.files;
  Sha256 all;
  for (size_t i = 0; i < raw.rows.size(); ++i) {
    if (!encoded[i]) {
      ++dataset.num_filtered_;
      continue;
    }
    encoded[i]->dataset_row = dataset.size();
    all.update(std::as_bytes(std::span(digests[i])));
    dataset.prompts_.push_back(std::move(*encoded[i]));
    dataset.places_.emplace_back(raw.rows[i].first, raw.rows[i].second.line);
  }
  dataset.digest_ = to_hex(all.finish());
  if (dataset.num_filtered_ > 0) {
    log_info(fmt::format("{}: left out {} of {} rows {}", options.key, format_count(dataset.num_filtered_),
                         format_count(static_cast<int64_t>(raw.rows.size())), options.left_out));
  }
  if (dataset.prompts_.empty() && dataset.num_filtered_ > 0) {
    return Error{ErrorKind::kData, fmt::format("no row is left: the data set has only rows {}", options.left_out),
                 options.files.front(), "raise the limit, or correct " + options.key};
  }
  if (dataset.prompts_.empty()) {
    return Error{ErrorKind::kData, "the data set has no rows", options.files.empty() ? "" : options.files.front(),
                 "correct " + options.key};
  }
  return dataset;
}

}  // namespace mortise
