// Which files of a data set a path means. Pure functions.
//
// "main/train" is tried as the name of a file, then as the beginning of the names main/train.*, main/train-*, then as a
// folder main/train/*, and then the same below the folder data/, where the hub's own tools write. Only files with names of
// data count (has_data_name).
#pragma once

#include <span>
#include <string>
#include <vector>

namespace mortise {

struct DataPathMatch {
  std::vector<std::string> files;  // sorted; empty if the path means nothing here
  std::string pattern;             // matches these files
};
[[nodiscard]] DataPathMatch find_data_path(std::span<const std::string> files, const std::string& path);

// What could follow the name of the data set, for messages: "main/train", "main/test", at most so many.
[[nodiscard]] std::vector<std::string> data_paths_in(std::span<const std::string> files, size_t max_results);

}  // namespace mortise
