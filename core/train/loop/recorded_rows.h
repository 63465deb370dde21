// RecordedRows: rows whose completions are recorded in the data, as the learner takes sampled ones. Plain values.
#pragma once

#include "foundation/batch/prompt_batch.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/step_table.h"

namespace mortise {

struct RecordedRows {
  PromptBatch prompts;
  SampleBatch samples;
  StepTable table;  // borrows from both; its response_mask says what of the rows is learnt
};

// `prompts` come from an SftEncoder.
RecordedRows recorded_rows(PromptBatch prompts);

}  // namespace mortise
