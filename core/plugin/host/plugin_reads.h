// What a plugin with given parameters will read besides its inputs, as it tells by mortise.reads/1 before any instance
// is made: files, which a resume compares, and data columns, which a run must have.
//
// Cost: loads the pack, and whatever the plugin does to find out. Thread rule: one thread; no slot of the pack running.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "foundation/formats/json.h"
#include "plugin/host/registry.h"

namespace mortise {

struct FileSet {
  std::string param;  // that leads to them: "path"
  std::string name;   // "imports"
  std::string what;   // for people: "modules that score.py imports from its folder"
  Path folder;
  std::vector<std::string> files;  // below the folder, sorted
};

struct NeededColumn {
  std::string param;
  std::string name;
  std::string who;   // for people: "'score' in score.py"
  std::string next;  // what else would help; may be empty
};

struct PluginReads {
  std::vector<FileSet> files;
  std::vector<NeededColumn> columns;
};

// Nothing for a plugin whose descriptor does not announce the extension; its pack is not loaded then. `params` as in the
// config; they must be right.
Result<PluginReads> plugin_reads(const PluginRegistry& registry, const PluginRef& ref,
                                 const nlohmann::ordered_json& params);

}  // namespace mortise
