// Keeps the prompts of a scan, or what must be known of them.
#include "experience/data/dataset.h"

#include <algorithm>
#include <span>

#include "foundation/formats/sha256.h"

namespace mortise {

RowEncoder prompt_row_encoder(const PromptEncoder& encoder, const DatasetOptions& options) {
  return [&encoder, vocab_size = options.vocab_size, filter = options.filter_overlong_prompts](
             const Json& row, const std::string& where) -> Result<std::optional<Prompt>> {
    Prompt prompt = TRY(encoder.encode(row, where, vocab_size));
    if (filter && encoder.is_overlong(prompt)) return std::optional<Prompt>();
    TRY(encoder.apply_length_policy(prompt, where));
    return std::optional<Prompt>(std::move(prompt));
  };
}

template <class Keep>
Result<> Dataset::read(const RowEncoder& encode, Keep&& keep) {
  files_.emplace(*env_, TRY(list_data_files(*env_, options_.files, options_.key)), options_.reading,
                 options_.max_samples);
  Sha256 all;
  entry_begins_.assign(options_.files.size() + 1, 0);
  RowScan scan = TRY(scan_rows(*files_, encode, options_, [&](ScannedRow row) {
    row.prompt.dataset_row = num_rows_++;
    all.update(std::as_bytes(std::span(row.digest)));
    ++entry_begins_[static_cast<size_t>(files_->files()[static_cast<size_t>(row.file)].entry) + 1];
    keep(std::move(row));
  }));
  for (size_t entry = 1; entry < entry_begins_.size(); ++entry) entry_begins_[entry] += entry_begins_[entry - 1];
  num_filtered_ = scan.num_filtered;
  all_rows_of_entry_ = std::move(scan.rows_of_entry);
  rejects_ = std::move(scan.rejects);
  digest_ = to_hex(all.finish());
  return {};
}

Result<Dataset> Dataset::load(Env& env, const PromptEncoder& encoder, const DatasetOptions& options) {
  return load(env, prompt_row_encoder(encoder, options), options);
}

Result<Dataset> Dataset::load(Env& env, const RowEncoder& encode, const DatasetOptions& options) {
  Dataset data(env, options);
  TRY(data.read(encode, [&](ScannedRow row) {
    data.prompts_.push_back(std::move(row.prompt));
    data.places_.emplace_back(row.file, row.number);
  }));
  return data;
}

Result<Dataset> Dataset::scan(Env& env, const RowEncoder& encode, const DatasetOptions& options) {
  Dataset data(env, options);
  StreamedRows rows;
  rows.census = ColumnCensus(options.columns);
  TRY(data.read(encode, [&](ScannedRow row) {
    const Prompt& prompt = row.prompt;
    if (rows.census.see_row(prompt.columns, prompt.dataset_row))
      rows.places.emplace(prompt.dataset_row, data.files_->where(row.file, row.number));
    for (const std::string& path : options.watched_columns) {
      const Json* value = rows.watched.contains(path) ? nullptr : column_at(prompt.columns, path);
      if (value != nullptr && !value->is_null()) rows.watched.insert(path);
    }
  }));
  rows.files = data.files_->files();
  for (const DataFile& file : rows.files) rows.infos.push_back(TRY(env.info(file.path)));
  rows.rows_of_entry = data.all_rows_of_entry_;
  data.streamed_ = std::move(rows);
  data.encode_ = encode;
  return data;
}

std::string Dataset::where(int64_t row) const {
  if (streamed_) {
    const auto place = streamed_->places.find(row);
    return place == streamed_->places.end() ? options_.key : place->second;
  }
  const auto& [file, number] = places_[static_cast<size_t>(row)];
  return files_->where(file, number);
}

bool Dataset::has_value(const std::string& path) const {
  if (streamed_) return streamed_->watched.contains(path);
  return std::ranges::any_of(prompts_, [&](const Prompt& prompt) {
    const Json* value = column_at(prompt.columns, path);
    return value != nullptr && !value->is_null();
  });
}

std::vector<std::string> Dataset::column_names() const {
  if (streamed_) return streamed_->census.names();
  std::vector<std::string> names;
  for (const Prompt& prompt : prompts_) {
    for (const auto& [name, value] : prompt.columns.items()) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

Result<> Dataset::check_files_unchanged() const {
  for (size_t i = 0; i < streamed_->files.size(); ++i) {
    const FileInfo now = TRY(env_->info(streamed_->files[i].path)), &before = streamed_->infos[i];
    if (now.size_bytes == before.size_bytes && now.modified_ns == before.modified_ns) continue;
    return Error{ErrorKind::kData, "the data file changed while the run reads it", streamed_->files[i].path.string(),
                 "restore the file, and resume from the last checkpoint"};
  }
  return {};
}

}  // namespace mortise
