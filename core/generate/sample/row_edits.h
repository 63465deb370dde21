// A row of logits as penalties and bars change it, for one draw. The row itself stays: its log-probabilities are the
// model's. Cost: a copy of the row, and the statistics of the chunks that changed. Thread rule: pure functions.
#pragma once

#include "generate/sample/sampling.h"

namespace mortise {

// The logit of a token that came before (transformers' repetition penalty, then OpenAI's two).
float penalised(float logit, const SeenToken& seen, const SamplingParams& params);

// The copy lies in `scratch` until its next use.
LogitRow edit_row(const Kernels& kernels, const LogitRow& row, const SamplingParams& params, const TokenEdits& edits,
                  SamplingScratch& scratch);

}  // namespace mortise
