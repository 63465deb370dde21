// How updates are computed: what changes numbers (temperature, clipping) and what changes memory and speed alone.
#pragma once

#include <cstdint>
#include <optional>

#include "learn/update/pass_flops.h"
#include "learn/update/train_batch.h"
#include "model/head/log_prob_head.h"
#include "model/layers/decoder.h"

namespace mortise {

// One pass of rows through the model. No gradient depends on it.
struct PassOptions {
  bool share_prompts = true;  // false: every row has its prompt for itself, the form that judges the other
  // Bytes of activations that a pass may keep for backward; layers that do not fit are computed again. Not set: all are
  // kept.
  std::optional<int64_t> activation_bytes;
  LayerPath path = LayerPath::kFast;
  FlopCount* flops = nullptr;  // every pass adds to it what it computes; null: nobody counts
};

struct LearnerOptions {
  double temperature = 1.0;  // divides the logits of every log-prob; sft has none
  double grad_clip = 1.0;    // L2 norm; 0 = no clipping
  MicroBatchOptions micro_batch;
  PassOptions pass;
  HeadOptions head;
  const Model* reference = nullptr;  // of a KL over the whole vocabulary; borrowed
};

}  // namespace mortise
