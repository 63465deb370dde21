// RunLog: everything a run writes for people and tools, in trainer.default_local_dir:
//   metrics.jsonl          a line per step          updates.jsonl   a line per optimizer update
//   events.out.tfevents.*  TensorBoard              log.txt         the log
//   config.resolved.toml   every setting            mortise.lock    the packs in use with their hashes
//   rejects.jsonl          the data rows that data.on_bad_row = "skip" passed over, if there are any
//   rank_K.log             the log of rank K, if the run has several processes
//   live.json              what the run does now, for `mortise top`
//   ROLLOUT_DATA_DIR/N.jsonl  the completions of step N with rewards and advantages, where trainer.rollout_data_dir is
//   set;
//                             those of a validation likewise in trainer.validation_data_dir
// and the progress line on the console. On a resume, lines behind the checkpoint are dropped, so that files read as if
// the run had never stopped. A metrics file with a damaged line is set aside with a warning; the readable lines are kept.
// Thread rule: one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/load.h"
#include "experience/data/row_scan.h"
#include "experience/reward/reward_runner.h"
#include "foundation/base/folder_lock.h"
#include "foundation/batch/prompt_batch.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/scored_batch.h"
#include "foundation/batch/step_table.h"
#include "foundation/metrics/sinks.h"
#include "plugin/host/registry.h"
#include "train/report/completion_files.h"

namespace mortise {

struct RunLogOptions {
  int64_t first_step = 0;  // done before this process
  int64_t first_update = 0;
  int64_t total_steps = 0;
  bool resumed = false;                   // everything after the two numbers is cut
  bool only_validates = false;            // nothing is cut or replaced
  std::vector<const Rejects*> rejects{};  // rejects in the run's data sets
};

class RunLog {
 public:
  // Makes the folder and opens the files. Disk errors are errors of kind kDisk.
  static Result<RunLog> open(Env& env, const LoadedConfig& config, const PluginRegistry* registry,
                             const RunLogOptions& options);

  // The log of a rank that is not the main one. It writes nothing but rank_K.log, in the folder that the main rank made.
  static Result<RunLog> open_silent(Env& env, const TrainerConfig& trainer, int rank);

  // Rows that a full disk refuses are kept and tried again with the next ones. Only sync() and close() fail by them.
  Result<> write_update(int64_t update, int64_t step, const std::vector<MetricValue>& values);
  Result<> write_step(int64_t step, const MetricSet& metrics);
  // Completions of a step: to JSONL where configured, and the first few to the console where configured.
  Result<> write_samples(int64_t step, const PromptBatch& prompts, const SampleBatch& samples,
                         const ScoredBatch& scored, const StepTable* table);
  // The first `num_rows` rows of each file of training have the numbers of their tokens. Borrows the tokenizer.
  void show_tokens(const Tokenizer& tokenizer, int64_t num_rows) {
    tokenizer_ = &tokenizer;
    num_token_rows_ = num_rows;
  }
  // The main numbers of a validation to the log.
  void log_validation(int64_t step, const MetricSet& metrics);
  // Writes the first few completions of a validation set to the log where trainer.log_val_generations asks for them, and
  // all to trainer.validation_data_dir where that is set. `set`: its name, "" for data.val_files.
  Result<> write_validation(int64_t step, const std::string& set, const PromptBatch& prompts,
                            const SampleBatch& samples, const ScoredBatch& scored);
  // A batch that ends the run, because a reward failed on too many of its rows, is written as those of any step or
  // validation. The log must not move after this, and outlive what `reward` scores.
  void keep_failed_batches_of(RewardRunner& reward);
  // Brings every row and completion so far to the disk, or fails. Called before a checkpoint from which a resume
  // continues.
  Result<> sync();
  Result<> close();

 private:
  explicit RunLog(Env& env) : completions_(env) {}
  bool is_silent_ = false;
  CompletionFiles completions_;
  FolderLock lock_;
  std::unique_ptr<MetricSink> metrics_, updates_;
  std::vector<std::unique_ptr<MetricSink>> others_;  // console, TensorBoard
  std::string rollout_data_dir_, validation_data_dir_;
  int64_t num_completions_to_print_ = 0, num_validation_to_print_ = 0, num_token_rows_ = 0;
  const Tokenizer* tokenizer_ = nullptr;
};

// The same two settings for `mortise eval`, which has no run folder. The file is
// trainer.validation_data_dir/eval.jsonl, next to those of the run with the same settings; of a set in a folder of its
// name. Returns it; nothing if that is not set.
Result<std::optional<Path>> write_eval_completions(Env& env, const TrainerConfig& trainer, const std::string& set,
                                                   const PromptBatch& prompts, const SampleBatch& samples,
                                                   const ScoredBatch& scored);

// A console table of completions: prompt (of a chat the user's last turn), completion, rewards, advantage; long texts
// are cut, line breaks shown as \n. Below a row why rewards of it failed.
std::string completions_table(const PromptBatch& prompts, const SampleBatch& samples, const ScoredBatch& scored,
                              const StepTable* table, int64_t max_rows);

}  // namespace mortise
