// The files that a list of names means: files, patterns with * ? [ ], and folders that `datasets` saved.
//
// The order is that of the list; the files of one pattern are sorted by their bytes, so that the order of the rows does
// not depend on the file system. A name that exists is never a pattern. Thread rule: free functions without state.
#pragma once

#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

// One entry of the list, at least one file. "~/" is the home folder. `key`: the configuration key of the list, for errors.
Result<std::vector<Path>> expand_data_files(Env& env, const std::string& given, const std::string& key);

}  // namespace mortise
