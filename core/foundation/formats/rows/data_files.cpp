// See data_files.h.
#include "foundation/formats/rows/data_files.h"

#include <fmt/core.h>
#include <fnmatch.h>

#include <algorithm>

#include "foundation/base/home_path.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"

namespace mortise {

namespace {

bool is_pattern(std::string_view name) { return name.find_first_of("*?[") != std::string_view::npos; }

// The paths below `folder` that the parts of a pattern from `part` on match, sorted.
Result<> match_parts(Env& env, const Path& folder, const std::vector<std::string>& parts, size_t part,
                     std::vector<Path>& out) {
  const bool is_last = part + 1 == parts.size();
  const auto visit = [&](const std::string& name) -> Result<> {
    const Path path = folder / name;
    const auto info = env.info(path);
    if (!info.ok()) return {};  // a link may lead nowhere
    if (is_last) {
      if (info->is_file) out.push_back(path);
      return {};
    }
    return info->is_directory ? match_parts(env, path, parts, part + 1, out) : Result<>();
  };
  if (!is_pattern(parts[part])) return env.exists(folder / parts[part]) ? visit(parts[part]) : Result<>();
  for (const std::string& name : TRY(env.list_dir(folder.empty() ? Path(".") : folder))) {
    if (::fnmatch(parts[part].c_str(), name.c_str(), FNM_PERIOD) == 0) TRY(visit(name));
  }
  return {};
}

Result<std::vector<Path>> match_pattern(Env& env, const std::string& pattern) {
  std::vector<std::string> parts;
  for (const Path& part : Path(pattern).relative_path()) parts.push_back(part.string());
  std::vector<Path> out;
  if (!parts.empty()) TRY(match_parts(env, Path(pattern).root_path(), parts, 0, out));
  std::ranges::sort(out);
  return out;
}

// A folder of Dataset.save_to_disk: state.json lists its files.
Result<std::vector<Path>> saved_dataset(Env& env, const Path& folder) {
  const Path state_path = folder / "state.json";
  const Json state = TRY(read_json_file(env, state_path));
  const Json* files = json_find(state, "_data_files");
  const auto bad = [&](const char* what) {
    return Error{ErrorKind::kData, what, state_path.string(), "save the data set again with save_to_disk"};
  };
  if (files == nullptr || !files->is_array() || files->empty()) return bad("'_data_files' must be a list of files");
  if (const Json* indices = json_find(state, "_indices_files"); indices != nullptr && !indices->is_null())
    return bad("the data set has an indices file, as older versions of datasets wrote");
  std::vector<Path> out;
  for (const Json& file : *files) {
    const std::string name = TRY(json_string(file, "filename", state_path.string()));
    if (Path(name).filename() != name) return bad("a file name in '_data_files' is not in the folder");
    out.push_back(folder / name);
  }
  return out;
}

Result<std::vector<Path>> files_of_folder(Env& env, const Path& folder, const std::string& key) {
  if (env.exists(folder / "state.json")) return saved_dataset(env, folder);
  if (env.exists(folder / "dataset_dict.json")) {
    const Json dict = TRY(read_json_file(env, folder / "dataset_dict.json"));
    std::vector<std::string> splits;
    if (const Json* names = json_find(dict, "splits"); names != nullptr && names->is_array()) {
      for (const Json& name : *names) splits.push_back(name.is_string() ? name.get<std::string>() : dump_json(name));
    }
    return Error{ErrorKind::kData, "the folder holds several splits: " + join(splits, ", "), folder.string(),
                 fmt::format("name one in {}, as in {}", key,
                             quote((folder / (splits.empty() ? "train" : splits.front())).string()))};
  }
  return Error{ErrorKind::kData, "this is a folder, and not one that datasets' save_to_disk wrote", folder.string(),
               fmt::format("name files in {}, as in {}", key, quote((folder / "*.parquet").string()))};
}

}  // namespace

Result<std::vector<Path>> expand_data_files(Env& env, const std::string& given, const std::string& key) {
  if (given.empty())
    return Error{ErrorKind::kData, key + " has an empty name", "", "remove it, or name a file of rows"};
  const std::string name = expand_home(given);
  const Path path(name);
  if (env.exists(path)) {
    if (TRY(env.info(path)).is_directory) return files_of_folder(env, path, key);
    return std::vector<Path>{path};
  }
  if (!is_pattern(name)) return Error{ErrorKind::kData, "the data file does not exist", name, "correct " + key};
  std::vector<Path> found = TRY(match_pattern(env, name));
  if (found.empty()) return Error{ErrorKind::kData, "no file matches the pattern", name, "correct " + key};
  return found;
}

}  // namespace mortise
