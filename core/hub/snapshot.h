// A folder with what a name of the hub means, from the cache or the hub.
//
// What is in the cache already is not asked for again. Downloads continue where they broke off, are checked against the
// hub's hashes, and show their progress. Only formats that run no code are taken. Threading: one thread per call;
// several processes may ask for the same name at once.
#pragma once

#include <optional>
#include <string>

#include "hub/client.h"
#include "hub/hub_name.h"
#include "hub/options.h"

namespace mortise {

struct HubSnapshot {
  std::string commit;
  Path folder;
};

// The files that a model needs: configuration, tokenizer, and weights as safetensors. `commit`: which one a run is bound to;
// nothing: what the name's revision is today. Without a connection the cache's own answer counts, with a warning.
// kind kConfig: no such model, no access, or weights only in a format that runs code.
Result<HubSnapshot> model_snapshot(Env& env, const HubOptions& options, const HubName& name,
                                   const std::optional<std::string>& commit = {});

struct HubDataFiles {
  HubSnapshot snapshot;
  Path pattern;  // the files in the folder: one file, or a pattern with "*"
};

// The files of a data set that name.path means (data_path.h), else those of the hub's own conversion to Parquet.
Result<HubDataFiles> data_snapshot(Env& env, const HubOptions& options, const HubName& name,
                                   const std::optional<std::string>& commit = {});

}  // namespace mortise
