// The note of a pack, as text. An accepted note has an id, a version and plugins with names.
#include "fuzz/fuzz_support.h"
#include "plugin/pack/note.h"

namespace mortise {

void fuzz::run_one(const uint8_t* data, size_t size) {
  const auto pack = parse_note(fuzz::as_text(data, size), "input.so");
  if (!pack.ok()) {
    fuzz::require(!pack.error().what.empty(), "an error says what");
    return;
  }
  fuzz::require(!pack->id.empty() && !pack->version.empty(), "a pack has an id and a version");
  for (const PluginInfo& plugin : pack->plugins) {
    fuzz::require(!plugin.name.empty() && !plugin.kind.empty(), "a plugin has a kind and a name");
    fuzz::require(pack->find_plugin(plugin.kind, plugin.name) != nullptr, "every plugin is found");
  }
}

}  // namespace mortise
