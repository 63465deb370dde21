// CompletionFiles: DIR/STEP.jsonl, a row per completion with its rewards and advantage, for trainer.rollout_data_dir
// and trainer.validation_data_dir.
//
// A file appears whole, by a rename, or not at all. If the disk refuses one, its rows wait in memory and are written
// before the next file or at flush(). Files of at most kMaxWaiting steps wait: the next one that cannot be written is
// an error. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "foundation/base/env.h"
#include "foundation/batch/prompt_batch.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/scored_batch.h"
#include "foundation/batch/step_table.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

// The completions of a step or a validation; `table` has the advantages and may be null. Borrowed.
struct Completions {
  int64_t step = 0;
  const PromptBatch& prompts;
  const SampleBatch& samples;
  const ScoredBatch& scored;
  const StepTable* table = nullptr;
  const Tokenizer* tokenizer = nullptr;  // for the text of tokens; null: no row has its tokens
  int64_t num_token_rows = 0;            // the first rows, which have the numbers of their tokens
};

// Writes one such file at once, or fails.
Result<> write_completions(Env& env, const Path& path, const Completions& completions);

class CompletionFiles {
 public:
  static constexpr size_t kMaxWaiting = 3;

  explicit CompletionFiles(Env& env) : env_(&env) {}
  // Makes the folder, and removes what a killed run was writing in it. Other files remain.
  Result<> open_folder(const Path& folder);
  Result<> write(const Path& path, const Completions& completions);
  // Everything that waits is on the disk, or it fails.
  Result<> flush();
  [[nodiscard]] size_t num_waiting() const { return waiting_.size(); }

 private:
  Env* env_;
  std::map<Path, std::string> waiting_;
};

// The value of the first token; 0 for an empty completion.
float first_advantage(const StepTable& table, size_t row);

}  // namespace mortise
