// Decodes rows whose tokens are known, to fill a model's SampledForward: a resumed run has the rows of a step, but not what
// sampling has computed of them, and a rank may learn a row that another one has sampled. The numbers have the same bits
// as those of sampling, because they depend only on the row's own tokens (forward.h). Cost: a copy of the weights, and a
// forward pass without the head. Thread rule: as GenerateEngine.
#pragma once

#include <cstdint>
#include <span>

#include "foundation/base/result.h"
#include "generate/kernels/kernels.h"
#include "model/model.h"

namespace mortise {

struct GivenRow {
  std::span<const int64_t> prompt_ids, response_ids;
  int64_t row_id = 0;
  int64_t group = 0;  // rows of one group follow one another and have the same prompt
};

// Adds the rows to the store of the model, which has none of them. `num_threads` 0: as passes use. Precondition: a CPU model
// whose embedding is float32.
Result<> fill_sampled_forward(const Model& model, std::span<const GivenRow> rows, Isa isa, int num_threads = 0);

}  // namespace mortise
