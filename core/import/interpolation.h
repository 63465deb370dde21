// OmegaConf's interpolations in a list of settings: ${a.b}, ${.sibling}, ${oc.select:a.b,default}. Private to this
// room.
#pragma once

#include <vector>

#include "import/source.h"

namespace mortise {

// Replaces every interpolation whose target is known. The others stay as they are, and are errors when their value is
// read.
void resolve_interpolations(std::vector<PeerSetting>& settings);

}  // namespace mortise
