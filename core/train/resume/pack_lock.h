// mortise.lock: the packs that a run found, and which of them its plugins came from, with their hashes; and the commits of
// models and data sets of the hub. A resume with
// another pack under the same name is a changed setting (resume.h). Thread rule: free functions; one thread.
#pragma once

#include <string>
#include <vector>

#include "config/load.h"
#include "foundation/base/env.h"
#include "plugin/host/registry.h"

namespace mortise {

// A plugin that the config names.
struct PluginUse {
  std::string kind, name;
  // Keys of the config, for messages: of the name, "reward.0.use", and of the table of the parameters, "reward.0".
  std::string name_key, key;
  Json params = Json::object();
};
// Those of a training run, rewards first.
std::vector<PluginUse> plugin_uses(const RunConfig& config);

// With the commits of the hub that the run uses.
[[nodiscard]] std::string pack_lock_text(const PluginRegistry& registry, const LoadedConfig& loaded);
// The same of the packs in use alone, for `mortise pack lock`. A plugin that is not found is an error.
Result<Json> run_lock_json(const PluginRegistry& registry, const RunConfig& config);

// Where the lock says that the pack of a plugin came from: "acme.match 1.0.0 (1a2b..), which was installed from ...";
// "" where it does not know.
[[nodiscard]] std::string locked_origin(Env& env, const Path& lock, std::string_view kind, std::string_view name);

struct PackChanges {
  std::string
      others;  // packs of users, a line each: "\n  pack acme.match (reward match): 1.0.0 (1a2b..) -> 1.0.0 (9f8e..)"
  std::string builtin;  // those that came with the program, likewise
};
// What the plugins of `config` are today, against the lock of the run. A name that was not in use then is no change of
// a pack. Nothing where the lock is missing or of an older form.
Result<PackChanges> pack_changes(Env& env, const Path& lock, const PluginRegistry& registry, const RunConfig& config);

}  // namespace mortise
