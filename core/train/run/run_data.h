// The prompts of a run: read, encoded and checked in one way for `train`, `sft`, `eval` and `train --dry-run`.
// Thread rule: free functions without state.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "config/load.h"
#include "experience/data/dataset.h"
#include "experience/data/prompt_source.h"
#include "foundation/base/env.h"
#include "model/weights/model_config.h"
#include "plugin/host/kinds/reward.h"
#include "plugin/host/registry.h"
#include "train/run/run_parts.h"

namespace mortise {

// What rows are read with and for. Borrows all.
struct RowSource {
  Env& env;
  const LoadedConfig& loaded;
  const PluginRegistry& registry;
  const PromptEncoder& encoder;
  const ModelConfig& model;
  RunKind kind;
};

// CSV files have no types: the cells of columns that data.columns declares, and of chats and token ids, are read as
// such.
[[nodiscard]] RowReaderOptions reading_options(const DataConfig& data);

// data.train_files as prompts to sample for. Errors name the row: one that has no prompt, that is too long, or that
// leaves the model too few positions for the longest completion.
Result<Dataset> load_train_prompts(const RowSource& rows);
// data.val_files and data.val_sets, the same.
Result<std::vector<ValRows>> load_val_rows(const RowSource& rows);
// data.train_files of `sft`: prompts with their recorded completions.
Result<Dataset> load_sft_rows(const RowSource& rows, const Tokenizer& tokenizer);
// sft_mix.files, the same; nothing if there are none.
Result<std::optional<Dataset>> load_sft_mix_rows(const RowSource& rows, const Tokenizer& tokenizer);

// The data columns as rewards see them. All training and validation rows together decide their types; `eval` reads the
// training files for them, if they exist, so that it scores as the run did. An error if a column's values are of
// several kinds, or if a reward is set to read a column without a value in any row that it scores. The rows that count
// are those that the run learns from, or evaluates; for validation rows of a run it is a warning. `train` may be null.
Result<ColumnTypes> settle_columns(const RowSource& rows, const Dataset* train, std::span<const ValRows> val);

// How `train` or `sft` takes its batches from the rows, and an update the rows of sft_mix, one by one.
PromptSourceOptions train_source_options(const RunConfig& config);
PromptSourceOptions sft_source_options(const RunConfig& config);
PromptSourceOptions sft_mix_source_options(const RunConfig& config);

}  // namespace mortise
