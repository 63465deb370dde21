// Terms of the memory estimate that memory_estimate.cpp and rank_memory.cpp share. Private to both.
#pragma once

#include <cstdint>

#include "config/batch_plan.h"
#include "config/load.h"
#include "train/run/memory_estimate.h"
#include "train/run/run_options.h"

namespace mortise {

// Bytes for each number of the layers' matrices.
double element_of_layers(ModelDtype dtype, WeightCopies copies);
// Tokens of the policy's largest pass on a rank.
double tokens_on_rank(const RunConfig& config, const BatchPlan& plan, bool by_operators);
// Bytes of the head in a pass over so many tokens, with the KL over the whole vocabulary if there is one: its chunk
// comes before the loss's, while the reference runs and the policy's layers keep nothing. `columns`: those of the vocabulary
// that a comparison of two heads holds at once.
double head_pass_bytes(const ModelConfig& model, const TrainedSize& trained, const RunConfig& config, double tokens,
                       int64_t columns);
// What backward by windows has in addition: the gradients by a window of a rank's hidden states.
double window_gradient_bytes(const ModelConfig& model, double tokens, const RunConfig& config);

}  // namespace mortise
