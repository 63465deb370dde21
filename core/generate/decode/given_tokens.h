// Decodes rows whose tokens are known, to fill a model's SampledForward again: a resumed run has the rows of a step, but not
// what sampling has computed of them. The numbers have the same bits as those of sampling, because they depend only on
// the row's own tokens (forward.h). Cost: that of sampling without the head. Memory: keys and values of the rows that it
// decodes together, less than the store takes. Thread rule: as GenerateEngine.
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

// Fills the store of the model, which was empty. `num_threads` 0: as libtorch uses. Precondition: a float32 CPU model.
Result<> fill_sampled_forward(const Model& model, std::span<const GivenRow> rows, Isa isa, int num_threads = 0);

}  // namespace mortise
