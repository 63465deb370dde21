// The rows that `mortise generate` writes, in the order of the prompts. It writes each row when it and all earlier rows
// are finished.
//
// Until commit() the rows are in PATH.partial, which is locked. The file remains if the command is stopped or killed.
// Rows of an earlier command there are moved aside. Cost: rows that wait for an earlier one are held in memory.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "foundation/base/folder_lock.h"
#include "foundation/formats/jsonl.h"
#include "generate/schedule/scheduler.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

class GeneratedRows {
 public:
  // A row for each prompt, with n completions. Prompts and tokenizer (null: no texts) outlive this. An Error if another
  // process writes the file.
  static Result<GeneratedRows> create(Env& env, const Path& path, const std::vector<std::vector<int64_t>>& prompts,
                                      int64_t n, const Tokenizer* tokenizer, bool log_probs);

  // request_id is the prompt's place, sample_index the completion's in its row.
  Result<> add(const GeneratedSequence& sequence);
  Result<> commit();  // precondition: all were added
  // The error that ended the command, with the place of the finished rows.
  [[nodiscard]] Error unfinished(Error error) const;
  [[nodiscard]] int64_t num_tokens() const { return num_tokens_; }

 private:
  struct Row {
    std::vector<GeneratedSequence> samples;
    int64_t num_missing = 0;
  };

  GeneratedRows(Env& env, FolderLock lock, NewJsonlFile file, const std::vector<std::vector<int64_t>>& prompts,
                int64_t n, const Tokenizer* tokenizer, bool log_probs)
      : env_(&env),
        lock_(std::move(lock)),
        file_(std::move(file)),
        prompts_(&prompts),
        n_(n),
        tokenizer_(tokenizer),
        log_probs_(log_probs) {}
  [[nodiscard]] Json row_of(size_t place, const std::vector<GeneratedSequence>& samples) const;

  Env* env_;
  FolderLock lock_;  // outlives the file, which ends by renaming or removing what is locked
  NewJsonlFile file_;
  const std::vector<std::vector<int64_t>>* prompts_;
  int64_t n_;
  const Tokenizer* tokenizer_;
  bool log_probs_;
  std::deque<Row> waiting_;  // from row num_written_ on
  size_t num_written_ = 0;
  int64_t num_tokens_ = 0;
};

}  // namespace mortise
