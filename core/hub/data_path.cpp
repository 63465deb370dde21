// Finds the files of a data set.
#include "hub/data_path.h"

#include <algorithm>
#include <set>

#include "foundation/formats/rows/row_reader.h"

namespace mortise {
namespace {

// "main/train-00000-of-00001.parquet" -> "main/train".
std::string path_of_file(const std::string& file) {
  const size_t name = file.rfind('/') == std::string::npos ? 0 : file.rfind('/') + 1;
  return file.substr(0, std::min(file.find_first_of("-.", name), file.size()));
}

std::vector<std::string> data_files_that(std::span<const std::string> files, const auto& are_wanted) {
  std::vector<std::string> out;
  for (const std::string& file : files) {
    if (has_data_name(file) && are_wanted(file)) out.push_back(file);
  }
  std::ranges::sort(out);
  return out;
}

// `start`: what all the files begin with. The common ending keeps other files of those names out.
std::string pattern_of(std::span<const std::string> files, const std::string& start) {
  if (files.size() == 1) return files[0];
  const std::string ending = files[0].substr(files[0].rfind('.') + 1);
  const bool is_common =
      std::ranges::all_of(files, [&](const std::string& file) { return file.ends_with("." + ending); });
  return start + (is_common ? ending : "");
}

DataPathMatch match_at(std::span<const std::string> files, const std::string& path) {
  if (std::ranges::find(files, path) != files.end()) return {{path}, path};
  auto found = data_files_that(files, [&](const std::string& file) { return path_of_file(file) == path; });
  if (!found.empty()) return {found, pattern_of(found, path + "[-.]*")};
  found = data_files_that(files, [&](const std::string& file) {
    return file.starts_with(path + "/") && file.find('/', path.size() + 1) == std::string::npos;
  });
  return {found, found.empty() ? "" : pattern_of(found, path + "/*")};
}

}  // namespace

DataPathMatch find_data_path(std::span<const std::string> files, const std::string& path) {
  if (path.empty()) return {};
  DataPathMatch found = match_at(files, path);
  return found.files.empty() ? match_at(files, "data/" + path) : found;
}

std::vector<std::string> data_paths_in(std::span<const std::string> files, size_t max_results) {
  std::set<std::string> paths;
  for (const std::string& file : files) {
    if (has_data_name(file) && paths.size() < max_results) paths.insert(path_of_file(file));
  }
  return {paths.begin(), paths.end()};
}

}  // namespace mortise
