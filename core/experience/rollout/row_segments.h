// RowSegments: rows of several batches that are sampled in pieces, each piece with the weights that are the newest then.
//
// A piece of a row is a request of its own whose prompt is the row so far, as a turn is (turns/turn_loop.h), so every
// backend that takes any prompt serves. Its tokens are drawn with a seed of the piece's, so no random number is used
// twice. The pieces of all batches are out at the same time. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "experience/rollout/rollout_runner.h"

namespace mortise {

// A batch whose rows may not be finished.
struct OpenRows {
  const PromptBatch* prompts = nullptr;
  SampleBatch* samples = nullptr;
  std::vector<uint8_t>* is_done = nullptr;  // by row
  int64_t piece = 0;                        // the same for all rows that are not done, from 0
  int64_t max_tokens = 0;                   // in this piece
  // Processes that share the rows deal out the prompts, one by one. Rows of this process's part get the piece here.
  int64_t part = 0, num_parts = 1;
  int64_t first_prompt = 0;  // prompts of batches that are dealt out before this one

  [[nodiscard]] bool is_here(const Sample& row) const { return (first_prompt + row.prompt_index) % num_parts == part; }
};

// The rows of a batch before their first piece.
SampleBatch unsampled_rows(const PromptBatch& prompts, const RolloutPlan& plan);

class RowSegments {
 public:
  // Borrows all of it.
  RowSegments(std::span<const OpenRows> batches, const RolloutPlan& plan, const Tokenizer& tokenizer);

  // One for each piece that is still to sample. They borrow from this object.
  std::vector<RolloutRequest> requests();
  // The end of a piece.
  void take(const RolloutSequence& sequence);

  [[nodiscard]] int64_t num_rows() const { return num_rows_; }        // that get a piece
  [[nodiscard]] int64_t num_arrived() const { return num_arrived_; }  // pieces that are back

 private:
  struct Batch {
    OpenRows rows;
    int64_t first_id = 0;  // a row's id is this and its number in the batch
    Sampling sampling;
  };
  void ask(const Batch& batch, std::vector<RolloutRequest>& requests);

  const RolloutPlan& plan_;
  const Tokenizer& tokenizer_;
  std::deque<Batch> batches_;
  std::deque<std::vector<int64_t>> contexts_;  // prompts of later pieces
  int64_t num_rows_ = 0, num_arrived_ = 0;
};

}  // namespace mortise
