// Searches the places for packs, and resolves names and versions.
#include "plugin/host/registry.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <system_error>

#include "foundation/base/suggest.h"
#include "foundation/base/text.h"
#include "plugin/host/installed.h"
#include "plugin/host/kinds/kinds.h"
#include "plugin/host/library.h"
#include "plugin/host/search.h"
#include "plugin/pack/pack_file.h"
#include "plugin/pack/semver.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBuiltinPrefix = "mortise.";

// "pack.id/plugin@range" in its parts; pack and range may be empty.
struct PluginName {
  std::string_view pack, plugin, range;
};

PluginName split_name(std::string_view name) {
  PluginName out;
  if (const size_t at = name.find('@'); at != std::string_view::npos) {
    out.range = name.substr(at + 1);
    name = name.substr(0, at);
  }
  if (const size_t slash = name.rfind('/'); slash != std::string_view::npos) {
    out.pack = name.substr(0, slash);
    name = name.substr(slash + 1);
  }
  out.plugin = name;
  return out;
}

std::string full_name(const PluginRef& ref) { return fmt::format("{}/{}", ref.pack->id, ref.plugin->name); }

std::string where_it_is(const PluginRef& ref) {
  return fmt::format("{} {} ({})", full_name(ref), ref.pack->version, ref.pack->path);
}

bool newer_first(const PluginRef& a, const PluginRef& b) {
  if (a.candidate->place != b.candidate->place) return a.candidate->place < b.candidate->place;
  const auto va = SemVer::parse(a.pack->version), vb = SemVer::parse(b.pack->version);
  return va && vb && compare(*va, *vb) > 0;
}

Error ambiguous(std::string_view kind, std::string_view name, const std::vector<PluginRef>& refs) {
  std::vector<std::string> places;
  for (const PluginRef& ref : refs) places.push_back(where_it_is(ref));
  const std::string full = full_name(refs.front());
  const bool one_pack =
      std::all_of(refs.begin(), refs.end(), [&](const PluginRef& ref) { return full_name(ref) == full; });
  return {ErrorKind::kPlugin,
          fmt::format("more than one {} is named {}: {}", short_kind(kind), quote(name), join(places, ", ")), "",
          one_pack ? "these are different files of one pack id and version: remove one, or give one another version"
                   : fmt::format("name the pack too, as in {}, or remove one file", quote(full))};
}

}  // namespace

// Fills a registry place by place.
class RegistryScan {
 public:
  RegistryScan(PluginRegistry& registry, const RegistryOptions& options)
      : registry_(registry), options_(options), disabled_(disabled_globs(options)) {
    builtin_dir_ = canonical(options.builtin_dir.empty() ? default_builtin_dir() : options.builtin_dir);
  }

  Result<> run() {
    const auto places = search_places(options_);
    for (place_ = 0; place_ < places.size(); ++place_) {
      const SearchPlace& place = places[place_];
      if (!place.refused.empty()) {
        const std::string path = place.path.string();
        registry_.rejected_.push_back({path, {ErrorKind::kConfig, place.refused, path, "write it from /"}});
      } else if (place.is_file) {
        const size_t before = registry_.rejected_.size();
        look_at(place.path, place.origin);
        if (registry_.rejected_.size() > before) return named(place, registry_.rejected_.back().reason);
      } else if (place.origin == PackOrigin::kStore) {
        std::error_code ignored;
        registry_.searched_.push_back({place.path.string(), place.origin, fs::exists(place.path, ignored)});
        for (const fs::path& file : installed_libraries(default_env(), place.path)) look_at(file, place.origin);
      } else {
        TRY(look_into(place));
      }
    }
    return {};
  }

 private:
  static fs::path canonical(const fs::path& path) {
    std::error_code failed;
    auto out = fs::canonical(path, failed);
    return failed ? path : out;
  }

  // The error of a place that somebody named, with where that was done.
  static Error named(const SearchPlace& place, Error error) {
    if (!place.where.empty()) error.where = place.where + (error.where.empty() ? "" : ": " + error.where);
    return error;
  }

  // A folder that the user names must exist, or the run ends. The other folders may be missing.
  static Error missing(const SearchPlace& place) {
    const std::string path = quote(place.path.string());
    std::error_code ignored;
    if (fs::exists(place.path, ignored))
      return named(place, {ErrorKind::kConfig, path + " is a file, not a folder of packs", "",
                           "name packs themselves in plugins.files (or --plugin)"});
    const std::string from = place.path.is_absolute()
                                 ? ""
                                 : fmt::format(" (a relative path starts at {})", fs::current_path(ignored).string());
    return named(place, {ErrorKind::kConfig, fmt::format("the folder of packs {} does not exist{}", path, from), "",
                         "correct the path, or make the folder"});
  }

  Result<> look_into(const SearchPlace& place) {
    std::error_code failed;
    fs::directory_iterator it(place.path, failed);
    registry_.searched_.push_back({place.path.string(), place.origin, !failed});
    if (failed) {
      std::error_code ignored;
      const bool is_folder = fs::is_directory(place.path, ignored);
      if (place.origin == PackOrigin::kConfig && !is_folder) return missing(place);
      if (fs::exists(place.path, ignored)) {
        Error error{ErrorKind::kDisk, "cannot be listed: " + failed.message(), place.path.string(),
                    "look at its rights"};
        if (place.origin == PackOrigin::kConfig) return named(place, std::move(error));
        registry_.rejected_.push_back({place.path.string(), std::move(error)});
      }
      return {};
    }
    std::vector<fs::path> files;
    for (; !failed && it != fs::directory_iterator(); it.increment(failed)) {
      if (it->path().extension() == ".so") files.push_back(it->path());
    }
    std::sort(files.begin(), files.end());  // the order of a folder is random
    for (const fs::path& file : files) look_at(file, place.origin);
    return {};
  }

  void look_at(const fs::path& path, PackOrigin origin) {
    if (!seen_.insert(canonical(path)).second) return;
    auto info = inspect_pack(path, options_.host_torch);
    if (!info.ok()) {
      registry_.rejected_.push_back({path.string(), std::move(info).error()});
    } else {
      consider(*std::move(info), path, origin);
    }
  }

  void consider(PackInfo info, const fs::path& path, PackOrigin origin) {
    const auto reject = [&](std::string what, std::string next) {
      registry_.rejected_.push_back(
          {info.path, {ErrorKind::kPlugin, std::move(what), info.path, std::move(next)}, info});
    };
    for (const std::string& glob : disabled_) {
      if (glob_matches(glob, info.id))
        return reject("disabled by MORTISE_PLUGINS_DISABLE=" + glob, "take it out there to use the pack");
    }
    const bool installed = canonical(path).parent_path() == builtin_dir_;
    if (installed) origin = PackOrigin::kInstalled;
    if (info.id.starts_with(kBuiltinPrefix)) {
      if (!installed)
        return reject(fmt::format("its id {} is kept for the packs of the installation", quote(info.id)),
                      "choose an id of your own, as in acme.match");
      origin = PackOrigin::kBuiltin;
    }
    if (origin != PackOrigin::kBuiltin && options_.admit) {
      if (auto admitted = options_.admit(info); !admitted.ok()) {
        registry_.rejected_.push_back({info.path, std::move(admitted).error(), info});
        return;
      }
    }
    Candidate candidate{std::move(info), origin, place_, ""};
    for (const Candidate& other : registry_.candidates_) {
      const bool same = other.info.id == candidate.info.id && other.info.version == candidate.info.version;
      // Two different files of one version in one folder are left in: using them is an error that lists both.
      if (same && other.hidden_by.empty() && (other.place != place_ || other.info.sha256 == candidate.info.sha256))
        candidate.hidden_by = other.info.path;
    }
    registry_.candidates_.push_back(std::move(candidate));
  }

  PluginRegistry& registry_;
  const RegistryOptions& options_;
  std::vector<std::string> disabled_;
  fs::path builtin_dir_;
  std::set<fs::path> seen_;
  size_t place_ = 0;
};

std::string_view pack_origin_name(PackOrigin origin) {
  switch (origin) {
    case PackOrigin::kConfig:
      return "config";
    case PackOrigin::kEnvironment:
      return "environment";
    case PackOrigin::kStore:
      return "store";
    case PackOrigin::kUser:
      return "user";
    case PackOrigin::kInstalled:
      return "installed";
    case PackOrigin::kBuiltin:
      return "built-in";
  }
  return "unknown";
}

std::string PluginRef::label() const {
  return fmt::format("{}@{} {} ({})", plugin->name, pack->id, pack->version, pack->short_hash());
}

std::string full_kind(std::string_view kind) {
  if (kind.find('/') != std::string_view::npos) return std::string(kind);
  const KindInfo* const known = find_kind_named(kind);
  return known != nullptr ? std::string(known->id) : fmt::format("mortise.{}/1", kind);
}

std::string short_kind(std::string_view kind) {
  if (kind.starts_with(kBuiltinPrefix)) kind.remove_prefix(kBuiltinPrefix.size());
  return std::string(kind.substr(0, kind.find('/')));
}

PluginRegistry::PluginRegistry() = default;
PluginRegistry::PluginRegistry(PluginRegistry&&) noexcept = default;
PluginRegistry& PluginRegistry::operator=(PluginRegistry&&) noexcept = default;
PluginRegistry::~PluginRegistry() = default;

Result<PluginRegistry> PluginRegistry::open(const RegistryOptions& options) {
  PluginRegistry registry;
  registry.host_torch_ = options.host_torch;
  TRY(RegistryScan(registry, options).run());
  return registry;
}

std::vector<PluginRef> PluginRegistry::matches(std::string_view kind, std::string_view plugin,
                                               std::string_view pack) const {
  std::vector<PluginRef> out;
  for (const Candidate& candidate : candidates_) {
    if (!candidate.hidden_by.empty() || (!pack.empty() && candidate.info.id != pack)) continue;
    for (const PluginInfo& info : candidate.info.plugins) {
      if (info.name == plugin && (kind.empty() || info.kind == kind))
        out.push_back({&candidate.info, &info, &candidate});
    }
  }
  return out;
}

std::string PluginRegistry::search_report() const {
  std::string text = "searched:";
  for (const SearchedDir& dir : searched_)
    text += fmt::format("\n  {}{}", dir.path, (dir.exists ? "" : " (does not exist)"));
  if (searched_.empty()) text += " no folder";
  if (!rejected_.empty()) text += "\nnot used:";
  for (const RejectedCandidate& rejected : rejected_) {
    text += fmt::format("\n  {}: {}", rejected.path, rejected.reason.what);
    if (!rejected.reason.next.empty()) text += "; " + rejected.reason.next;
  }
  return text;
}

const RejectedCandidate* PluginRegistry::refused(std::string_view kind, std::string_view plugin,
                                                 std::string_view pack) const {
  for (const RejectedCandidate& one : rejected_) {
    if (!one.info || (!pack.empty() && one.info->id != pack)) continue;
    for (const PluginInfo& info : one.info->plugins)
      if (info.name == plugin && (kind.empty() || info.kind == kind)) return &one;
  }
  return nullptr;
}

Error PluginRegistry::not_found(std::string_view kind, std::string_view name) const {
  const PluginName parts = split_name(name);
  if (const RejectedCandidate* one = refused(kind, parts.plugin, parts.pack); one != nullptr) {
    return {ErrorKind::kPlugin,
            fmt::format("the {} {} is in {}, which may not be used: {}", kind.empty() ? "plugin" : short_kind(kind),
                        quote(parts.plugin), one->info->label(), one->reason.what),
            one->path, one->reason.next};
  }
  Error error{ErrorKind::kPlugin,
              fmt::format("no {} is named {}", (kind.empty() ? "plugin" : short_kind(kind)), quote(name)), "", ""};
  std::set<std::string> names;
  for (const Candidate& candidate : candidates_) {
    for (const PluginInfo& info : candidate.info.plugins) {
      if (kind.empty() || info.kind == kind) names.insert(info.name);
    }
  }
  const std::vector<std::string> list(names.begin(), names.end());
  for (const PluginRef& ref : matches("", parts.plugin, "")) {
    std::string other = full_name(ref);
    if (!kind.empty() && ref.plugin->kind != kind) {
      const bool revision = short_kind(ref.plugin->kind) == short_kind(kind);
      other += revision
                   ? fmt::format(", of the kind {} which this program does not know", ref.plugin->kind)
                   : (short_kind(ref.plugin->kind).starts_with('a') ? ", an " : ", a ") + short_kind(ref.plugin->kind);
    }
    error.next += fmt::format("{}there is {}", error.next.empty() ? "" : "; ", other);
  }
  const std::string nearest = suggest(parts.plugin, list);
  if (!nearest.empty()) error.next += (error.next.empty() ? "" : "; ") + nearest;
  error.next += (error.next.empty() ? "" : "\n") + search_report();
  return error;
}

Result<PluginRef> PluginRegistry::find(std::string_view kind_name, std::string_view name) const {
  const std::string kind = full_kind(kind_name);
  const PluginName parts = split_name(name);
  std::vector<PluginRef> refs = matches(kind, parts.plugin, parts.pack);
  if (refs.empty()) return not_found(kind, name);

  if (parts.pack.empty()) {  // a bare name of a built-in plugin always means that plugin
    const auto builtin = [](const PluginRef& ref) { return ref.candidate->origin == PackOrigin::kBuiltin; };
    if (std::any_of(refs.begin(), refs.end(), builtin))
      std::erase_if(refs, [&](const PluginRef& ref) { return !builtin(ref); });
  }
  if (name.find('@') != std::string_view::npos) {
    auto range = VersionRange::parse(parts.range);
    if (!range.ok()) {
      range.error().where = std::string(name);
      return std::move(range).error();
    }
    const std::vector<PluginRef> all = refs;
    std::erase_if(refs, [&](const PluginRef& ref) { return !range->matches(*SemVer::parse(ref.pack->version)); });
    if (refs.empty()) {
      std::vector<std::string> have;
      for (const PluginRef& ref : all) have.push_back(where_it_is(ref));
      return Error{ErrorKind::kPlugin, fmt::format("no version of {} fits {}", quote(parts.plugin), quote(parts.range)),
                   "", "there is: " + join(have, ", ")};
    }
  }
  std::set<std::string_view> packs;
  for (const PluginRef& ref : refs) packs.insert(ref.pack->id);
  if (packs.size() > 1) return ambiguous(kind, name, refs);
  std::stable_sort(refs.begin(), refs.end(), newer_first);
  if (refs.size() > 1 && !newer_first(refs[0], refs[1])) return ambiguous(kind, name, {refs[0], refs[1]});
  return refs.front();
}

Result<std::vector<PluginRef>> PluginRegistry::find_all(std::string_view name) const {
  const PluginName parts = split_name(name);
  std::vector<PluginRef> out;
  std::set<std::string> kinds;
  for (const PluginRef& ref : matches("", parts.plugin, parts.pack)) kinds.insert(ref.plugin->kind);
  if (kinds.empty()) return not_found("", name);
  for (const std::string& kind : kinds) out.push_back(TRY(find(kind, name)));
  return out;
}

Result<LoadedPlugin> PluginRegistry::load(const PluginRef& ref) const {
  const Library* library = TRY(Library::load(*ref.pack, host_torch_));
  const PluginInfo* plugin = library->info().find_plugin(ref.plugin->kind, ref.plugin->name);
  const std::string &kind = ref.plugin->kind, &name = ref.plugin->name;
  return LoadedPlugin{&library->info(), plugin, library->vtable(kind, name), library->descriptor(kind, name)};
}

Result<LoadedPlugin> PluginRegistry::load(std::string_view kind, std::string_view name) const {
  return load(TRY(find(kind, name)));
}

}  // namespace mortise
