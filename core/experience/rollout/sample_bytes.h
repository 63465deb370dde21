// Completions as bytes for the other ranks of a run, which are the same build.
#pragma once

#include "foundation/batch/sample_batch.h"
#include "plugin/worker/channel.h"

namespace mortise {

void put_sample(Encoder& out, const Sample& sample);
// Bytes that are no sample give any sample: ask the Decoder.
Sample read_sample(Decoder& in);

}  // namespace mortise
