// Keeps the order of an epoch and the position in it, and cuts batches.
#include "experience/data/prompt_source.h"

#include <fmt/core.h>

#include <cmath>
#include <utility>

#include "foundation/base/log.h"

namespace mortise {

Result<PromptSource> PromptSource::create(const Dataset& dataset, const PromptSourceOptions& options) {
  auto feed =
      TRY(dataset.is_streamed() ? make_stream_feed(dataset, options.order) : make_memory_feed(dataset, options.order));
  if (feed->rows_per_epoch() < options.batch_size) {
    return Error{ErrorKind::kData,
                 fmt::format("the training data has {} prompts, fewer than {} = {}", feed->rows_per_epoch(),
                             options.batch_size_key, options.batch_size),
                 options.files_key, fmt::format("lower {} or add data", options.batch_size_key)};
  }
  PromptSource source(dataset, options, std::move(feed));
  TRY(source.feed_->go_to(0, 0, nullptr));
  return source;
}

Result<PromptBatch> PromptSource::next(int64_t step) {
  if (batch_in_epoch_ == batches_per_epoch()) {
    TRY(feed_->go_to(epoch_ + 1, 0, nullptr));
    ++epoch_;
    batch_in_epoch_ = 0;
  }
  PromptBatch batch;
  batch.step = step;
  batch.epoch = epoch_;
  batch.prompts = TRY(feed_->take(options_.batch_size));
  ++batch_in_epoch_;
  return batch;
}

void PromptSource::note_rewards(const PromptBatch& batch, std::span<const double> rewards) {
  const size_t n = batch.prompts.empty() ? 0 : rewards.size() / batch.prompts.size();
  for (size_t p = 0; p < batch.prompts.size(); ++p) {
    double sum = 0.0;
    int64_t count = 0;
    for (const double reward : rewards.subspan(p * n, n)) {
      if (std::isnan(reward)) continue;
      sum += reward;
      ++count;
    }
    feed_->note_rewards(batch.prompts[p].dataset_row, sum, count);
  }
}

Result<> PromptSource::save_state(StateWriter& writer) const {
  writer.put_int("epoch", epoch_);
  writer.put_int("batch_in_epoch", batch_in_epoch_);
  writer.put_int("dataset_size", dataset_->size());
  writer.put_text("dataset_sha256", dataset_->digest());
  feed_->save_state(writer);
  return {};
}

// The number of rows is equal but the rows differ: the settings are the same, and the run would learn from other data.
Result<> PromptSource::check_rows(StateReader& reader) const {
  if (!reader.has("dataset_sha256")) return {};
  if (TRY(reader.get_text("dataset_sha256")) == dataset_->digest()) return {};
  const char* const what = "the training rows differ from those of the checkpoint";
  if (takes_changes) {
    log_warn(what);
    return {};
  }
  return Error{ErrorKind::kData, what, options_.files_key,
               "restore the files, give --allow-change to continue with these, or start over with --resume never"};
}

Result<> PromptSource::load_state(StateReader& reader) {
  const int64_t size = TRY(reader.get_int("dataset_size"));
  if (size != dataset_->size()) {
    return Error{ErrorKind::kData,
                 fmt::format("the checkpoint was made with {} training rows, but the data files now have {}", size,
                             dataset_->size()),
                 options_.files_key, "restore the files, or start over with --resume never"};
  }
  TRY(check_rows(reader));
  epoch_ = TRY(reader.get_int("epoch"));
  batch_in_epoch_ = TRY(reader.get_int("batch_in_epoch"));
  if (epoch_ < 0 || batch_in_epoch_ < 0 || batch_in_epoch_ > batches_per_epoch()) {
    return Error{ErrorKind::kConfig,
                 fmt::format("the checkpoint was saved after batch {} of its epoch, but an epoch now has only {}",
                             batch_in_epoch_, batches_per_epoch()),
                 options_.batch_size_key, "keep the batch size of the run, or start over with --resume never"};
  }
  return feed_->go_to(epoch_, batch_in_epoch_ * options_.batch_size, &reader);
}

}  // namespace mortise
