// Host extension mortise.weight_group/0 (draft): rollout backends send weights over the links of dist/weights.
// Thread rule: as the extension's header says.
#pragma once

#include "mortise/ext/draft/weight_group.h"

namespace mortise {

// Its table. Valid for ever.
const mortise_weight_group_vtable* weight_group_extension();
// Offers the extension to every plugin of this process from now on. The policy is loaded: NCCL sends from its device.
void offer_weight_groups();

}  // namespace mortise
