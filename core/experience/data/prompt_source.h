// PromptSource: the PromptBatch of each step, epoch after epoch.
//
// An epoch is the whole data set in its own order (data.shuffle: a permutation keyed by (seed, epoch)); its last
// incomplete batch is dropped. The position is two numbers and goes into checkpoints. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experience/data/dataset.h"
#include "foundation/base/stateful.h"
#include "foundation/batch/prompt_batch.h"

namespace mortise {

struct PromptSourceOptions {
  int64_t batch_size = 1;  // prompts per step
  bool shuffle = true;
  uint64_t seed = 0;
  std::string batch_size_key = "data.train_batch_size";  // the setting that batch_size comes from, for messages
};

class PromptSource : public Stateful {
 public:
  // Refuses a data set smaller than one batch. `dataset` must outlive the source.
  static Result<PromptSource> create(const Dataset& dataset, const PromptSourceOptions& options);

  PromptBatch next(int64_t step);

  [[nodiscard]] int64_t batches_per_epoch() const { return dataset_->size() / options_.batch_size; }
  [[nodiscard]] int64_t epoch() const { return epoch_; }

  bool takes_changes = false;  // loading: warns about changed rows instead of refusing them (--allow-change)

  [[nodiscard]] std::string state_name() const override { return "data.prompt_source"; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  PromptSource(const Dataset& dataset, const PromptSourceOptions& options);
  void load_order();
  Result<> check_rows(StateReader& reader) const;

  const Dataset* dataset_;
  PromptSourceOptions options_;
  int64_t epoch_ = 0;
  int64_t batch_in_epoch_ = 0;
  std::vector<int64_t> order_;  // of epoch_
};

}  // namespace mortise
