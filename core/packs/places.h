// Where packs are installed and what is trusted: the folders of this user and of this machine.
//
//   store        $MORTISE_PACK_STORE, else $XDG_DATA_HOME/mortise/store, else ~/.local/share/mortise/store
//   user_config  $XDG_CONFIG_HOME/mortise, else ~/.config/mortise: trust.toml, and index/ with what was seen last of each
//                index (index.h), whichever store is in use
//   machine      /etc/mortise: trust.toml, policy.toml
// The environment is not read in a program with raised rights (AT_SECURE). Threading: free functions.
#pragma once

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

struct PackPlaces {
  Path store, user_config, machine_config = "/etc/mortise";
};
Result<PackPlaces> pack_places();
// The same; without a home folder only the machine's, since there is neither a store nor a user's trust.
PackPlaces known_pack_places();

}  // namespace mortise
