// RowSegments: rows of several batches that are sampled in pieces, each piece with the weights that are the newest then.
//
// A piece of a row is a request of its own whose prompt is the row so far, as a turn is (turns/turn_loop.h), so every
// backend that takes any prompt serves. Its tokens are drawn with a seed of the piece's, so no random number is used
// twice. Pieces of all batches are out at the same time. Thread rule: one thread.
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
};

// A prompt with rows that are not done. RolloutPlan::next_prompt counts these, through all batches.
struct OpenPrompt {
  size_t batch = 0;
  int64_t prompt = 0;    // in its batch
  int64_t num_rows = 0;  // that are not done
};

std::vector<OpenPrompt> open_prompts(std::span<const OpenRows> batches);

// The rows of a batch before their first piece.
SampleBatch unsampled_rows(const PromptBatch& prompts, const RolloutPlan& plan);

class RowSegments {
 public:
  // Borrows all of it.
  RowSegments(std::span<const OpenRows> batches, const RolloutPlan& plan, const Tokenizer& tokenizer);

  // One for each piece of an open prompt that is still to sample, at the end of `requests`. They borrow from this object.
  void begin(size_t open_prompt, std::vector<RolloutRequest>& requests);
  // The end of a piece.
  void take(const RolloutSequence& sequence);

  [[nodiscard]] std::span<const OpenPrompt> open() const { return open_; }
  [[nodiscard]] int64_t num_begun() const { return num_begun_; }      // rows that get a piece, so far
  [[nodiscard]] int64_t num_arrived() const { return num_arrived_; }  // pieces that are back

 private:
  struct Batch {
    OpenRows rows;
    int64_t first_id = 0;  // a row's id is this and its number in the batch
    Sampling sampling;
  };

  const RolloutPlan& plan_;
  const Tokenizer& tokenizer_;
  std::deque<Batch> batches_;
  std::deque<std::vector<int64_t>> contexts_;  // prompts of later pieces
  std::vector<OpenPrompt> open_;
  int64_t num_begun_ = 0, num_arrived_ = 0;
};

}  // namespace mortise
