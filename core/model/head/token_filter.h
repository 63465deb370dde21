// The sampler's filters on a row of logits, for training on what they leave: top_k, top_p, min_p, typical_p, with the
// meaning of generate/sample/sampling.h (a test compares the two).
//
// Cost: one pass over the row and a selection; typical_p sorts what the other filters left.
// Thread rule: pure function; `scratch` belongs to one thread.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "foundation/batch/sampling.h"

namespace mortise {

struct TokenFilterScratch {
  std::vector<std::pair<double, int32_t>> kept;  // (logit over temperature, id)
};

// `logits` are after penalties and divided by the temperature; those of forbidden tokens are -inf. `ids` receives the
// tokens that the filters leave, ascending.
void filter_tokens(std::span<const double> logits, const Sampling& sampling, TokenFilterScratch& scratch,
                   std::vector<int32_t>& ids);

}  // namespace mortise
