// Host extension mortise.score_model/1: reward models (score_model.h) behind the C ABI. Every `open` loads a model of
// its own, which lives until its `close`. Thread rule: as a ScoreModel.
#pragma once

#include "model/device/compute_device.h"
#include "mortise/ext/score_model.h"

namespace mortise {

// Offers the extension to every plugin of this process from now on. Models that are opened later compute on `device`.
void offer_score_models(const ComputeDevice& device = {});

}  // namespace mortise
