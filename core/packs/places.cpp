// Computes the folders from the environment.
#include "packs/places.h"

#include <cstdlib>

#include "plugin/host/installed.h"

namespace mortise {

Result<PackPlaces> pack_places() {
  PackPlaces places;
  places.store = default_pack_store();
  const char* config = ::secure_getenv("XDG_CONFIG_HOME");
  const char* home = ::secure_getenv("HOME");
  if (config != nullptr && Path(config).is_absolute()) {
    places.user_config = Path(config) / "mortise";
  } else if (home != nullptr && Path(home).is_absolute()) {
    places.user_config = Path(home) / ".config" / "mortise";
  }
  if (places.store.empty() || places.user_config.empty())
    return Error{ErrorKind::kConfig, "there is no home folder to keep packs in", "mortise pack",
                 "set HOME, or MORTISE_PACK_STORE and XDG_CONFIG_HOME, to absolute folders"};
  return places;
}

PackPlaces known_pack_places() {
  auto places = pack_places();
  return places.ok() ? *std::move(places) : PackPlaces{"/nonexistent", "/nonexistent"};
}

}  // namespace mortise
