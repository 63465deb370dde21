// A copy of a row of logits with penalties and forbidden tokens applied, for one draw. The row itself does not change:
// its log-probabilities are the model's. Cost: a copy of the row, and the statistics of the changed chunks. Thread
// rule: pure functions.
#pragma once

#include "generate/sample/sampling.h"

namespace mortise {

// The copy is in `scratch` until the next use of `scratch`.
LogitRow edit_row(const Kernels& kernels, const LogitRow& row, const SamplingParams& params, const TokenEdits& edits,
                  SamplingScratch& scratch);

}  // namespace mortise
