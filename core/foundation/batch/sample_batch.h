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

struct Sample {
  int64_t prompt_index = 0;        // into PromptBatch::prompts; also the row's group
  int64_t sample_index = 0;        // place in the group, 0 .. n-1
  std::vector<int64_t> token_ids;  // exactly what was sampled, the end token included; may be empty only when aborted
  std::vector<float> log_prob;     // of token_ids at temperature, unfiltered, as the sampler had it; empty = not given
  FinishReason finish_reason = FinishReason::kStop;
  int64_t weight_version = 0;  // of the weights that made it: 0 = the initial ones, +1 per update
  std::string text;            // decoded without special tokens
};

struct SampleBatch {
  int64_t num_samples_per_prompt = 1;  // n
  bool mask_truncated = false;         // rows that ended by length carry no loss
  std::vector<Sample> rows;            // [B]
};

}  // namespace mortise
