// See sft_mix.h.
#include "train/loop/sft_mix.h"

#include <utility>

#include "learn/objective/sft_mix_schedule.h"

namespace mortise {

Result<DrawnMix> draw_mix(const SftMixConfig& mix, PromptSource& source, int64_t unit, int64_t step) {
  DrawnMix out;
  out.mu = sft_mix_mu(mix, unit);
  if (out.mu == 0.0) return out;
  PromptBatch rows;
  rows.step = step;
  for (int64_t i = 0; i < mix.train_batch_size; ++i) {
    PromptBatch one = TRY(source.next(step));
    rows.prompts.push_back(std::move(one.prompts.front()));
  }
  out.rows = recorded_rows(std::move(rows));
  return out;
}

}  // namespace mortise
