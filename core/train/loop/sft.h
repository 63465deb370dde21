// Supervised learning: mean cross-entropy of the tokens that are learnt, on the same model, packing and optimizer as
// RL.
//
// A row is a prompt with its completion, or a whole chat (experience/data/sft_encoder.h says what of it is learnt).
// Validation samples greedily and scores with the run's rewards; sft.stop_val_accuracy ends the run as soon as their
// mean reaches it.
#pragma once

#include "train/loop/trainer.h"

namespace mortise {

struct SftSummary {
  TrainSummary train;
  double val_accuracy = -1.0;  // accuracy at the last validation; negative if there was none
};

// `ranks`: the processes of the run, as for train().
Result<SftSummary> sft(Env& env, const LoadedConfig& loaded, const ResumeRequest& resume,
                       Communicator& ranks = alone());

}  // namespace mortise
