// See sft_mix.h.
#include "train/loop/sft_mix.h"

#include <utility>

#include "learn/objective/sft_mix_schedule.h"

namespace mortise {

int64_t num_mix_rows(const SftMixConfig& mix, int64_t rows_of_update, int64_t rows_of_whole_update) {
  if (rows_of_update >= rows_of_whole_update) return mix.train_batch_size;
  const int64_t each = mix.rows_per_mean.value_or(1), num_means = mix.train_batch_size / each;
  return (num_means * rows_of_update + rows_of_whole_update - 1) / rows_of_whole_update * each;
}

Result<DrawnMix> draw_mix(const SftMixConfig& mix, int64_t num_rows, PromptSource& source, int64_t unit, int64_t step) {
  DrawnMix out;
  out.mu = sft_mix_mu(mix, unit);
  if (out.mu == 0.0) return out;
  PromptBatch rows;
  rows.step = step;
  for (int64_t i = 0; i < num_rows; ++i) {
    PromptBatch one = TRY(source.next(step));
    rows.prompts.push_back(std::move(one.prompts.front()));
  }
  out.rows = recorded_rows(std::move(rows));
  return out;
}

}  // namespace mortise
