// Host extension mortise.weight_group/0 (draft): rollout backends send weights over the links of dist/weights.
// Thread rule: as the extension's header says.
#pragma once

#include <c10/core/Device.h>

#include "mortise/ext/draft/weight_group.h"

namespace mortise {

// Its table. Valid for ever.
const mortise_weight_group_vtable* weight_group_extension();
// Offers the extension to every plugin of this process from now on. `policy`: where it is; NCCL sends from there.
void offer_weight_groups(const at::Device& policy);

}  // namespace mortise
