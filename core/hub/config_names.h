// Replaces names of the hub in a configuration by folders and files of the cache. docs/hub.md lists the keys.
//
// A run is bound to commits: its mortise.lock names them, and a resume takes these, wherever a branch points by then.
// Threading: one thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/load.h"
#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "foundation/formats/json.h"

namespace mortise {

// `locks`: files that may be missing; the first that names a model or data set decides its commit. Fills loaded.hub.
// Nothing is asked of the hub if the configuration has no name of it.
Result<> resolve_hub_names(Env& env, LoadedConfig& loaded, std::span<const Path> locks);

// A folder as given, or the folder of a model's name. For commands with --model.
Result<Path> model_folder(Env& env, const std::string& given);

// The member "hub" of a mortise.lock: [{"name", "revision", "commit"}].
[[nodiscard]] Json hub_lock(std::span<const HubPin> pins);

}  // namespace mortise
