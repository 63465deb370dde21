// PromptSource: the PromptBatch of each step, epoch after epoch.
//
// An epoch has its own order of the rows (row_feed.h), a function of (seed, epoch); its last incomplete batch is
// dropped. The position goes into checkpoints: two numbers, and for streamed rows how many were read. Thread rule: one
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "experience/data/dataset.h"
#include "experience/data/row_feed.h"
#include "foundation/base/stateful.h"
#include "foundation/batch/prompt_batch.h"

namespace mortise {

struct PromptSourceOptions {
  int64_t batch_size = 1;  // prompts per step
  RowOrder order;
  std::string batch_size_key = "data.train_batch_size";  // the setting that batch_size comes from, for messages
  std::string files_key = "data.train_files";            // the setting that names the files, for messages
  std::string state_name = "data.prompt_source";         // in checkpoints
};

class PromptSource : public Stateful {
 public:
  // Refuses epochs smaller than one batch. `dataset` must outlive the source.
  static Result<PromptSource> create(const Dataset& dataset, const PromptSourceOptions& options);

  // Only streamed rows can fail.
  Result<PromptBatch> next(int64_t step);
  // The rewards of the completions of a batch, n per prompt, NaN where there is none: for data.curriculum_by_reward.
  void note_rewards(const PromptBatch& batch, std::span<const double> rewards);

  [[nodiscard]] int64_t rows_per_epoch() const { return feed_->rows_per_epoch(); }
  [[nodiscard]] int64_t batches_per_epoch() const { return rows_per_epoch() / options_.batch_size; }
  [[nodiscard]] int64_t epoch() const { return epoch_; }

  bool takes_changes = false;      // loading: warns about changed rows instead of refusing them (--allow-change)
  bool begins_if_missing = false;  // loading: a checkpoint without a place in these rows begins with the first

  [[nodiscard]] std::string state_name() const override { return options_.state_name; }
  [[nodiscard]] bool may_be_missing() const override { return begins_if_missing; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  PromptSource(const Dataset& dataset, PromptSourceOptions options, std::unique_ptr<RowFeed> feed)
      : dataset_(&dataset), options_(std::move(options)), feed_(std::move(feed)) {}
  Result<> check_rows(StateReader& reader) const;

  const Dataset* dataset_;
  PromptSourceOptions options_;
  int64_t epoch_ = 0;
  int64_t batch_in_epoch_ = 0;
  std::unique_ptr<RowFeed> feed_;
};

}  // namespace mortise
