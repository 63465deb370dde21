// What the head keeps on a device that has kernels, for estimates. Pure functions.
#pragma once

#include <cstdint>

namespace mortise {

// Bytes of the logits of a chunk that a one-pass over so many tokens keeps for backward there. The head is float32.
int64_t kept_logit_bytes(int64_t num_rows, int64_t vocab);

}  // namespace mortise
