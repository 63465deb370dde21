// Which packs may be used: revocations, the bytes of the store, and the policy (docs/packs.md).
//
// Every command that finds plugins asks this; a run adds its own policy and its lock (core/train/run/admission.h). Cost:
// for the policy `signed`, reading and verifying the archive of each installed pack. Threading: one thread.
#pragma once

#include <functional>
#include <optional>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "packs/places.h"
#include "packs/run_lock.h"
#include "packs/store.h"
#include "packs/trust.h"
#include "plugin/pack/pack_info.h"

namespace mortise {

// For RegistryOptions::admit. `lock`: what a locked run may use; without one nothing is asked of it.
Result<std::function<Result<>(const PackInfo&)>> pack_admission(Env& env, const PackPlaces& places,
                                                                const TrustPolicy& policy = {},
                                                                std::optional<RunLock> lock = {});

// Why an installed pack may not be used: a revocation of its archive, or of keys that signed it. Null without one. Of a
// pack whose signatures did not count when it was installed, they are read again. It points into `trust`.
Result<const Revocation*> revocation_of_installed(Env& env, const Trust& trust, const InstalledPack& pack);

}  // namespace mortise
