// load_config: a TOML file, the files it builds on, a preset and overrides, to one checked RunConfig.
//
// Later wins: defaults < base files < file < overrides. A file's preset comes after its base files and before its other
// keys. The command line's preset comes after all files and before the other overrides.
//
// Every problem of every file is reported at once, one line each ("run.toml:12:3: unknown key 'actor.policy_los'; did
// you mean 'actor.policy_loss'?"), as one Error of kind kConfig. Overrides: `a.b=VALUE` with a TOML value, a bare text,
// or `null`; `reward.0.weight=2`, `reward.1.use=length` (the next free place adds one); `~a.b` takes a key or table
// back to its default; Hydra's leading + is accepted and ignored. Plugin parameters (open tables) are kept as they are
// and checked later against the plugin's table: use where() there. Cost: reading the files. Thread rule: free functions
// without state; call from any thread.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "foundation/base/env.h"

namespace mortise {

// A model or data set of the hub, and the commit that its revision was when the run began.
struct HubPin {
  std::string name;  // "models/Qwen/Qwen2.5-0.5B-Instruct"
  std::string revision, commit;
};

struct LoadedConfig {
  RunConfig config;
  std::string file;  // as given; empty if there was none
  std::map<std::string, std::string>
      positions;  // every key that was set -> "run.toml:12:3", "override 'a.b=c'", "preset gspo"

  std::vector<HubPin> hub;  // names that core/hub has replaced by folders

  // For the user, a line each: the keys that a preset replaces, and the settings of a preset that were overridden.
  std::vector<std::string> notes;

  // The place where a key (or plugin parameter, "reward.0.key", "actor.policy_loss.tau", "rollout.replay.path") was
  // set. Not set: the place of its nearest table, else the file, else "defaults". The alias prefix is understood.
  [[nodiscard]] std::string where(std::string_view key) const;
  // Set by a file, preset or override (also to its default value)?
  [[nodiscard]] bool is_set(std::string_view key) const;
};

// `path` empty: no file, defaults and overrides only. Types, ranges and names are checked here; the rules between keys
// by check_config (check.h).
Result<LoadedConfig> load_config(Env& env, const Path& path, std::span<const std::string> overrides);

// The same for TOML text; `where` names it in errors and relative `base` paths start from its folder.
Result<LoadedConfig> load_config_text(Env& env, std::string_view text, std::string_view where,
                                      std::span<const std::string> overrides);

}  // namespace mortise
