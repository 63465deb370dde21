// What the head keeps on a device that has kernels, for estimates. Pure functions.
#pragma once

#include <cstdint>

namespace mortise {

// Bytes of the logits of a chunk that a one-pass over so many tokens keeps for backward there. Logits are float32.
int64_t kept_logit_bytes(int64_t num_rows, int64_t vocab);
// What such a pass of a head that rounds has next to them, all in bfloat16: the weight's copy, the hidden states, and the
// gradients of a chunk in a block of the vocabulary.
int64_t rounded_head_bytes(int64_t num_rows, int64_t width, int64_t vocab);

}  // namespace mortise
