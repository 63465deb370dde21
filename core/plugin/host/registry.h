// Plugins by name: where to search for packs, which are refused and why, and which plugin a name means.
//
// Search order: config files and folders, MORTISE_PLUGIN_PATH, the store of installed packs, the user's data folder,
// the packs of the installation; never the current directory. Looking reads notes only: no code of a pack runs before
// one of its plugins is loaded, and a pack that was loaded stays for the life of the process.
// Cost: opening reads and hashes every pack once. Threading: open and load on one thread; the rest is read-only.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "plugin/pack/pack_info.h"

struct mortise_descriptor;

namespace mortise {

// A file or folder that somebody named, and where ("run.toml:12:3"; may be empty).
struct NamedPlace {
  NamedPlace(std::filesystem::path named, std::string by = "")  // NOLINT(google-explicit-constructor)
      : path(std::move(named)), where(std::move(by)) {}
  NamedPlace(const char* named) : path(named) {}  // NOLINT(google-explicit-constructor)
  std::filesystem::path path;
  std::string where;
};

struct RegistryOptions {
  std::vector<NamedPlace> files;  // single packs, before every folder
  std::vector<NamedPlace> paths;  // folders, before the environment's
  bool use_environment = true;    // MORTISE_PLUGIN_PATH, MORTISE_PLUGINS_DISABLE, XDG_DATA_HOME
  bool use_user_packs = true;
  // Folder of the built-in packs; empty: <program>/../lib/mortise/packs.
  std::filesystem::path builtin_dir;
  std::string host_torch;  // version of libtorch in this program ("2.11.0"); "": none
  // May a pack that is not built-in be used? A refusal is listed with its reason; of a file that was named it is an
  // error. Empty: every pack may.
  std::function<Result<>(const PackInfo&)> admit = {};
};

// kInstalled and kBuiltin share a folder; the pack ids mortise.* there are built-in and are refused elsewhere.
enum class PackOrigin { kConfig, kEnvironment, kStore, kUser, kInstalled, kBuiltin };
[[nodiscard]] std::string_view pack_origin_name(PackOrigin origin);

// A pack that may be used.
struct Candidate {
  PackInfo info;
  PackOrigin origin = PackOrigin::kConfig;
  size_t place = 0;       // place of its folder or file in the search order
  std::string hidden_by;  // path of the same pack and version found earlier; empty: in use
};

// A file or folder that was looked at and is not used.
struct RejectedCandidate {
  std::string path;
  Error reason;
  std::optional<PackInfo> info = {};  // what a sound pack says that may not be used
};

struct SearchedDir {
  std::string path;
  PackOrigin origin = PackOrigin::kConfig;
  bool exists = false;
};

// The plugin that a name means. Points into the registry.
struct PluginRef {
  const PackInfo* pack = nullptr;
  const PluginInfo* plugin = nullptr;
  const Candidate* candidate = nullptr;
  [[nodiscard]] std::string label() const;  // "gspo@mortise.losses 0.1.0 (1a2b3c4d5e6f)"
};

// A plugin whose pack is in memory. Always valid, because packs are never unloaded.
struct LoadedPlugin {
  const PackInfo* pack = nullptr;
  const PluginInfo* plugin = nullptr;
  const void* vtable = nullptr;
  const mortise_descriptor* descriptor = nullptr;
};

class PluginRegistry {
 public:
  // Looks through all places. Damaged or refused packs end in rejected(); only what was named and cannot be used is an
  // error: a file that is missing or refused, a folder that is not there.
  static Result<PluginRegistry> open(const RegistryOptions& options = {});
  PluginRegistry(PluginRegistry&&) noexcept;
  PluginRegistry& operator=(PluginRegistry&&) noexcept;
  ~PluginRegistry();

  // `name` is "plugin" or "pack.id/plugin", either with an optional "@range" (^1.2, ~1.2.3, >=1.0 <2.0, =1.0.0).
  // `kind` is a MORTISE_KIND_* id or its short form ("policy_loss").
  [[nodiscard]] Result<PluginRef> find(std::string_view kind, std::string_view name) const;
  // Every plugin of this name, of any kind, in use; for `plugin describe`.
  [[nodiscard]] Result<std::vector<PluginRef>> find_all(std::string_view name) const;
  // Loads the pack (once) and returns the plugin's vtable. Runs code of the pack.
  Result<LoadedPlugin> load(const PluginRef& ref) const;
  Result<LoadedPlugin> load(std::string_view kind, std::string_view name) const;

  [[nodiscard]] const std::vector<Candidate>& candidates() const { return candidates_; }
  [[nodiscard]] const std::vector<RejectedCandidate>& rejected() const { return rejected_; }
  [[nodiscard]] const std::vector<SearchedDir>& searched() const { return searched_; }

 private:
  PluginRegistry();
  friend class RegistryScan;

  // `kind` "" = any
  [[nodiscard]] std::vector<PluginRef> matches(std::string_view kind, std::string_view plugin,
                                               std::string_view pack) const;
  [[nodiscard]] Error not_found(std::string_view kind, std::string_view name) const;
  // The first refused pack that has the plugin; null without one.
  [[nodiscard]] const RejectedCandidate* refused(std::string_view kind, std::string_view plugin,
                                                 std::string_view pack) const;
  [[nodiscard]] std::string search_report() const;

  std::vector<Candidate> candidates_;  // in search order
  std::vector<RejectedCandidate> rejected_;
  std::vector<SearchedDir> searched_;
  std::string host_torch_;
};

// "policy_loss" -> "mortise.policy_loss/1"; a full id does not change.
[[nodiscard]] std::string full_kind(std::string_view kind);
// "mortise.policy_loss/1" -> "policy_loss".
[[nodiscard]] std::string short_kind(std::string_view kind);

}  // namespace mortise
