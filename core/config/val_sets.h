// The validations of a run: data.val_files, and the sets of data.val_sets with sampling and rewards of their own.
//
// The keys of a set are those of rollout.val_kwargs, with `files`, `max_samples` and `rewards`. What a set does not say is
// as in rollout.val_kwargs. Pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/load.h"

namespace mortise {

struct ValSet {
  std::string name;                // "" : data.val_files
  std::string files_key;           // the setting that names the files, for messages
  std::vector<std::string> files;  // as data.val_files
  int64_t max_samples = -1;
  ValKwargs kwargs;
  std::vector<std::string> rewards;  // by name; empty: all that validate
};

// data.val_files first, if it is given; then the sets in their order. One Error with every problem of data.val_sets.
Result<std::vector<ValSet>> val_sets(const LoadedConfig& loaded);

}  // namespace mortise
