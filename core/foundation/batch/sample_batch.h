// SampleBatch: what the rollout hands to the rewards: B completions in prompt-major order (legend: prompt_batch.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mortise {

// Values of the C ABI's MORTISE_FINISH_*.
enum class FinishReason : int32_t { kStop = 0, kLength = 1, kAbort = 2 };

[[nodiscard]] constexpr const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
  }
  return "unknown";
}

// Why a row with several turns got no further one.
enum class TurnEnd : int32_t { kStop = 0, kDone = 1, kMaxTurns = 2, kTurnLength = 3, kResponseLength = 4, kFailed = 5 };

[[nodiscard]] constexpr const char* turn_end_name(TurnEnd end) {
  switch (end) {
    case TurnEnd::kStop:
      return "stop";  // the last turn called no tool
    case TurnEnd::kDone:
      return "done";  // the environment ended the episode
    case TurnEnd::kMaxTurns:
      return "max_assistant_turns";
    case TurnEnd::kTurnLength:
      return "max_turn_length";
    case TurnEnd::kResponseLength:
      return "response_length";
    case TurnEnd::kFailed:
      return "failed";  // the environment failed
  }
  return "unknown";
}

// What a row with several turns has in addition (docs/turns.md). num_assistant is 0 for a row that was sampled in one
// piece, and everything is empty then.
struct SampleTurns {
  int64_t num_assistant = 0;          // turns that were sampled
  int64_t num_tool_calls = 0;         // that the model made and the environment answered
  int64_t num_failed_calls = 0;       // how many of them were answered with an error
  TurnEnd end = TurnEnd::kStop;       // why there is no further turn
  std::vector<uint8_t> is_sampled{};  // [tokens] 1 = sampled, 0 = of an observation
  std::vector<double> rewards{};      // [tokens] of the environment; empty: it gave none
  std::vector<int64_t> prompt_ids{};  // where the environment added to the row's prompt; empty: those of the prompt
  std::string messages{};             // JSON list of the messages after the prompt, in order
  std::string failure{};              // why the environment failed on the row; "": it did not
};

// Tokens of a row that one version of the weights sampled, one behind the other.
struct VersionSpan {
  int64_t version = 0;
  int64_t num_tokens = 0;
};

struct Sample {
  int64_t prompt_index = 0;        // into PromptBatch::prompts; also the row's group
  int64_t sample_index = 0;        // place in the group, 0 .. n-1
  std::vector<int64_t> token_ids;  // exactly what was sampled, the end token included; may be empty only when aborted
  std::vector<float> log_prob;     // one per token, at the sampler's temperature, unfiltered unless the batch
                                   // is_filtered; empty = not given. 0 for tokens of observations
  FinishReason finish_reason = FinishReason::kStop;
  int64_t weight_version = 0;  // version of the weights that made it, or its first tokens: 0 = the initial ones, +1
                               // per update
  std::string text;            // decoded without special tokens
  SampleTurns turns{};
  std::vector<VersionSpan> spans{};  // its tokens by version, in order; empty: weight_version sampled all of them
  std::vector<uint16_t> experts{};   // that prompt and completion took (expert_choices.h); empty: not given
};

struct SampleBatch {
  int64_t num_samples_per_prompt = 1;  // n
  bool mask_truncated = false;         // rows that ended by length carry no loss
  bool is_filtered = false;            // log_prob is after penalties, forbidden tokens and filters
  std::vector<Sample> rows;            // [B]
};

}  // namespace mortise
