// Which packs a run may use: plugins.trust, the machine's policy, its lock and what holds for every command
// (packs/admission.h).
//
// Cost: for plugins.trust = signed, reading and verifying the archive of each installed pack. Threading: one thread.
#pragma once

#include "config/load.h"
#include "foundation/base/result.h"
#include "packs/places.h"
#include "packs/trust.h"
#include "plugin/host/registry.h"

namespace mortise {

// mortise.lock next to the run's file.
[[nodiscard]] Path lock_path(const LoadedConfig& loaded);

// The packs that `options` finds, less those that may not be used: they are listed as rejected, with the reason. With a
// lock, a pack that it names and that is not there is an error that says where it came from, and so is a plugin of the
// run from a pack that it does not name.
Result<PluginRegistry> open_admitted(const LoadedConfig& loaded, RegistryOptions options);
Result<PluginRegistry> open_admitted(const LoadedConfig& loaded, RegistryOptions options, const PackPlaces& places);

}  // namespace mortise
