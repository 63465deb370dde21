// Packs that `mortise pack install` put into the store (core/packs/store.h has the layout): where the store is, and the
// libraries in it. Reads names and one line per pack; a damaged entry is left out. Threading: free functions.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

// $MORTISE_PACK_STORE, else $XDG_DATA_HOME/mortise/store, else ~/.local/share/mortise/store; empty without any.
[[nodiscard]] std::filesystem::path default_pack_store();

// The object that an entry of the store names: 64 hex digits.
[[nodiscard]] Result<std::string> read_store_entry(Env& env, const std::filesystem::path& entry);

// The shared objects of all installed packs, sorted by id and version.
[[nodiscard]] std::vector<std::filesystem::path> installed_libraries(Env& env, const std::filesystem::path& store);

}  // namespace mortise
