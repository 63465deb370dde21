#include "experience/data/dataset.h"

#include <mutex>
#include <optional>

#include "foundation/base/log.h"
#include "foundation/base/thread_pool.h"
#include "foundation/formats/jsonl.h"

namespace mortise {

namespace {

struct RawRow {
  Json value;
  int32_t file = 0;
  int64_t line = 0;
};

Result<std::vector<RawRow>> read_rows(Env& env, const DatasetOptions& options) {
  std::vector<RawRow> rows;
  for (size_t f = 0; f < options.files.size(); ++f) {
    if (!env.exists(options.files[f])) {
      return Error{ErrorKind::kData, "the data file does not exist", options.files[f], "correct " + options.key};
    }
    JsonlReader reader = TRY(JsonlReader::open(env, options.files[f]));
    while (true) {
      if (options.max_samples >= 0 && static_cast<int64_t>(rows.size()) >= options.max_samples) return rows;
      std::optional<JsonlRow> row = TRY(reader.next());
      if (!row) break;
      rows.push_back({std::move(row->value), static_cast<int32_t>(f), row->line});
    }
  }
  return rows;
}

}  // namespace

std::string Dataset::where(int64_t row) const {
  const auto& [file, line] = places_[static_cast<size_t>(row)];
  return files_[static_cast<size_t>(file)] + ":" + std::to_string(line);
}

Result<Dataset> Dataset::load(Env& env, const PromptEncoder& encoder, const DatasetOptions& options) {
  std::vector<RawRow> rows = TRY(read_rows(env, options));
  const auto where_of = [&](const RawRow& row) {
    return options.files[static_cast<size_t>(row.file)] + ":" + std::to_string(row.line);
  };
  std::vector<std::optional<Prompt>> encoded(rows.size());
  std::mutex mutex;
  std::optional<std::pair<int64_t, Error>> first_error;  // the earliest row's, whatever thread finds it first
  ThreadPool pool(0);
  pool.parallel_for(0, static_cast<int64_t>(rows.size()), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const RawRow& row = rows[static_cast<size_t>(i)];
      auto prompt = encoder.encode(row.value, where_of(row), options.vocab_size);
      std::optional<Error> error;
      if (!prompt.ok()) {
        error = std::move(prompt).error();
      } else if (!(options.filter_overlong_prompts && encoder.is_overlong(*prompt))) {
        auto fitted = encoder.apply_length_policy(*prompt, where_of(row));
        if (!fitted.ok())
          error = std::move(fitted).error();
        else
          encoded[static_cast<size_t>(i)] = std::move(prompt).value();
      }
      if (error) {
        const std::lock_guard lock(mutex);
        if (!first_error || i < first_error->first) first_error = {i, std::move(*error)};
        return;
      }
    }
  });
  if (first_error) return std::move(first_error->second);

  Dataset dataset;
  dataset.files_ = options.files;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!encoded[i]) {
      ++dataset.num_filtered_;
      continue;
    }
    encoded[i]->dataset_row = dataset.size();
    dataset.prompts_.push_back(std::move(*encoded[i]));
    dataset.places_.emplace_back(rows[i].file, rows[i].line);
  }
  if (dataset.num_filtered_ > 0) {
    log_info(options.key + ": left out " + std::to_string(dataset.num_filtered_) + " of " +
             std::to_string(rows.size()) + " rows whose prompts are longer than data.max_prompt_length");
  }
  if (dataset.prompts_.empty()) {
    return Error{ErrorKind::kData, "the data set has no rows", options.files.empty() ? "" : options.files.front(),
                 "correct " + options.key};
  }
  return dataset;
}

}  // namespace mortise
