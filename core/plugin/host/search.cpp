// Makes the list of places to search from the config and the environment.
#include "plugin/host/search.h"

#include <cstdlib>
#include <system_error>

#include "foundation/base/home_path.h"
#include "foundation/base/text.h"
#include "foundation/base/this_program.h"
#include "plugin/host/installed.h"

namespace mortise {
namespace {

std::string environment(const char* name) {
  const char* value = ::secure_getenv(name);  // null under AT_SECURE
  return value == nullptr ? std::string() : std::string(value);
}

std::filesystem::path user_pack_dir() {
  // The XDG base directory specification: a relative value is to be ignored.
  const std::filesystem::path data_home = environment("XDG_DATA_HOME");
  if (data_home.is_absolute()) return data_home / "mortise" / "packs";
  const std::filesystem::path home = environment("HOME");
  return home.is_absolute() ? home / ".local" / "share" / "mortise" / "packs" : std::filesystem::path();
}

}  // namespace

std::filesystem::path default_builtin_dir() {
  const auto program = this_program();
  if (program.empty()) return {};
  return program.parent_path().parent_path() / "lib" / "mortise" / "packs";
}

std::vector<SearchPlace> search_places(const RegistryOptions& options) {
  std::vector<SearchPlace> places;
  for (const NamedPlace& file : options.files)
    places.push_back({expand_home(file.path.string()), PackOrigin::kConfig, true, "", file.where});
  for (const NamedPlace& folder : options.paths)
    places.push_back({expand_home(folder.path.string()), PackOrigin::kConfig, false, "", folder.where});
  if (options.use_environment) {
    const std::string variable = environment("MORTISE_PLUGIN_PATH");
    for (const std::string_view entry : split(variable, ':')) {
      if (entry.empty()) continue;
      SearchPlace place{expand_home(std::string(entry)), PackOrigin::kEnvironment, false, ""};
      if (!place.path.is_absolute())
        place.refused = "MORTISE_PLUGIN_PATH takes absolute folders only, never the current one";
      places.push_back(std::move(place));
    }
  }
  if (options.use_user_packs) {
    if (auto store = default_pack_store(); !store.empty())
      places.push_back({std::move(store), PackOrigin::kStore, false, ""});
    if (auto dir = user_pack_dir(); !dir.empty()) places.push_back({std::move(dir), PackOrigin::kUser, false, ""});
  }
  auto builtin = options.builtin_dir.empty() ? default_builtin_dir() : options.builtin_dir;
  if (!builtin.empty()) places.push_back({std::move(builtin), PackOrigin::kInstalled, false, ""});
  return places;
}

std::vector<std::string> disabled_globs(const RegistryOptions& options) {
  std::vector<std::string> globs;
  if (!options.use_environment) return globs;
  const std::string variable = environment("MORTISE_PLUGINS_DISABLE");
  for (const std::string_view entry : split(variable, ',')) {
    if (const auto glob = trim(entry); !glob.empty()) globs.emplace_back(glob);
  }
  return globs;
}

bool glob_matches(std::string_view glob, std::string_view text) {
  size_t g = 0, t = 0;
  size_t star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

}  // namespace mortise
