// `mortise generate` with rollout.multi_turn: whole episodes of every prompt, played as training plays them.
#pragma once

#include "config/load.h"
#include "foundation/formats/json.h"
#include "model/device/compute_device.h"

namespace mortise {

// Plays rollout.n episodes of each prompt in the file and writes them to `out`, in the form of the files in
// trainer.rollout_data_dir. The file appears when all have ended. Returns the command's summary.
Result<Json> generate_turns(Env& env, const LoadedConfig& loaded, const ComputeDevice& device, const Path& prompts,
                            const Path& out);

}  // namespace mortise
