// The supervised rows of an update of reinforcement learning ([sft_mix]), drawn while mu is above 0.
#pragma once

#include "config/run_config.h"
#include "experience/data/prompt_source.h"
#include "train/loop/recorded_rows.h"

namespace mortise {

struct DrawnMix {
  double mu = 0.0;
  RecordedRows rows;  // none if mu is 0
};

// Rows for an update of `rows_of_update` rows. A smaller update than others, at the end of an epoch, takes its share,
// rounded up to whole means.
int64_t num_mix_rows(const SftMixConfig& mix, int64_t rows_of_update, int64_t rows_of_whole_update);

// `unit`: updates or steps of the run so far, as for the learning rate. `source` gives one row at a time, so that an
// update may take rows of two passes over the files.
Result<DrawnMix> draw_mix(const SftMixConfig& mix, int64_t num_rows, PromptSource& source, int64_t unit, int64_t step);

}  // namespace mortise
