// Completions as bytes for the other ranks of a run, which are the same build.
#pragma once

#include "foundation/batch/sample_batch.h"
#include "plugin/worker/channel.h"

namespace mortise {

void put_sample(Encoder& out, const Sample& sample);
// If the bytes are no sample, the result is any sample. Ask the Decoder whether it could read them.
Sample read_sample(Decoder& in);

}  // namespace mortise
