// OmegaConf's interpolations in a list of settings: ${a.b}, ${.sibling}, ${oc.select:a.b,default}. Private to this
// room.
#pragma once

#include <vector>

#include "config/import/source.h"

namespace mortise {

// Replaces every one whose target is known; the others stay as they are, and are errors where the value is read.
void resolve_interpolations(std::vector<PeerSetting>& settings);

}  // namespace mortise
