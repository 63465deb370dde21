// Lists the libraries of the installed packs.
#include "plugin/host/installed.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "foundation/base/env.h"
#include "plugin/pack/note.h"
#include "plugin/pack/semver.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHashDigits = 64;

fs::path environment_path(const char* name) {
  const char* value = ::secure_getenv(name);  // null under AT_SECURE
  const fs::path path = value == nullptr ? "" : value;
  return path.is_absolute() ? path : fs::path();
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed); !failed && it != fs::directory_iterator(); it.increment(failed))
    out.push_back(it->path());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

fs::path default_pack_store() {
  if (auto store = environment_path("MORTISE_PACK_STORE"); !store.empty()) return store;
  if (const auto data = environment_path("XDG_DATA_HOME"); !data.empty()) return data / "mortise" / "store";
  const auto home = environment_path("HOME");
  return home.empty() ? home : home / ".local" / "share" / "mortise" / "store";
}

Result<std::string> read_store_entry(Env& env, const fs::path& entry) {
  std::string text = TRY(env.read_file(entry, kHashDigits + 1));
  if (!text.empty() && text.back() == '\n') text.pop_back();
  const bool is_hash = text.size() == kHashDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (is_hash) return text;
  return Error{ErrorKind::kPlugin, "the store is damaged: this entry names no object", entry.string(),
               "delete the file and install the pack again"};
}

std::vector<fs::path> installed_libraries(Env& env, const fs::path& store) {
  std::vector<fs::path> out;
  for (const fs::path& folder : sorted_entries(store / "packs")) {
    const std::string id = folder.filename();
    if (!is_pack_id(id)) continue;
    for (const fs::path& entry : sorted_entries(folder)) {
      if (!SemVer::parse(entry.filename().string())) continue;  // a temporary name
      const auto object = read_store_entry(env, entry);
      if (object.ok()) out.push_back(store / "objects" / *object / (id + ".so"));
    }
  }
  return out;
}

}  // namespace mortise
