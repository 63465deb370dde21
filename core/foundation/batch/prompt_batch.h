// PromptBatch: what the data room hands to the rollout: the prompts of one step, in order.
//
// Shape legend of the stage structs (all of core/foundation/batch): P prompts of the step, n samples per prompt,
// B = P*n rows in prompt-major order (row = prompt * n + sample), N response tokens of all rows, K reward functions.
// Token ids are the truth: text is for people and rewards only. Plain values; no shared state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "foundation/formats/json.h"

namespace mortise {

struct Prompt {
  std::vector<int64_t> token_ids;
  std::string text;             // the prompt as the model sees it (chat template applied), special tokens included
  std::string messages;         // JSON of the chat, empty for a plain prompt
  std::string data_source;      // verl's column; "unknown" where it is absent or empty
  Json columns;                 // the data row's other columns, an object
  int64_t dataset_row = 0;      // place in the data set (files in the order given)
  int64_t sampled_in_step = 0;  // the step that sampled a replay buffer's group; 0: this step
  // For `mortise sft` only: the recorded tokens after token_ids, and which of them have a loss (1).
  std::vector<int64_t> response_ids;
  std::vector<uint8_t> response_mask;
};

struct PromptBatch {
  int64_t step = 0;             // step of the run, from 1
  int64_t epoch = 0;            // from 0
  std::vector<Prompt> prompts;  // [P]
};

}  // namespace mortise
