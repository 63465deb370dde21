// Brings the files of a model or a data set into the cache.
#include "hub/snapshot.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "foundation/formats/rows/row_reader.h"
#include "hub/cache.h"
#include "hub/data_path.h"

namespace mortise {
namespace {

constexpr uint64_t kMarginBytes = uint64_t{64} << 20;  // disk space that stays free for everything else
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
// The hub converts every public data set to Parquet, in the folders CONFIGURATION/SPLIT of this revision.
constexpr std::string_view kConvertedRevision = "refs/convert/parquet";

bool is_at_top(const std::string& path) { return path.find('/') == std::string::npos; }

// Configuration, tokenizer, chat template: small files of data, none of which is run.
bool is_small_model_file(const std::string& path) {
  if (!is_at_top(path)) return false;
  for (const char* ending : {".json", ".txt", ".jinja", ".model", ".tiktoken"}) {
    if (path.ends_with(ending)) return true;
  }
  return false;
}

class Download {
 public:
  Download(Env& env, const HubOptions& options, const HubName& name)
      : env_(env), client_(env, options), cache_(env, options.cache, name), name_(name) {}

  Result<HubRevision> list(const std::optional<std::string>& commit);
  // The files come into the snapshot; those that are there already cost nothing.
  Result<> fetch(HubRevision& revision, const std::vector<std::string>& paths);
  [[nodiscard]] HubSnapshot snapshot(const std::string& commit) const { return {commit, cache_.snapshot(commit)}; }

 private:
  Result<HubRevision> from_cache(const std::optional<std::string>& commit, const std::string& why);
  Result<> check_room(const std::vector<HubFile*>& files);
  Result<> fetch_one(const HubFile& file, const std::string& commit);
  Result<> fill_blob(const HubFile& file, const std::string& commit);
  void show(const HubFile& file, uint64_t bytes) const;

  Env& env_;
  HubClient client_;
  HubCache cache_;
  HubName name_;
  bool is_from_cache_ = false;
  uint64_t total_ = 0, done_ = 0;
};

Result<HubRevision> Download::from_cache(const std::optional<std::string>& commit, const std::string& why) {
  is_from_cache_ = true;
  const auto known = commit ? commit : cache_.commit_of(name_.revision);
  HubRevision revision;
  if (known) {
    revision.commit = *known;
    for (std::string& path : cache_.files_of(*known)) revision.files.push_back({std::move(path), "", 0});
  }
  if (!revision.files.empty()) return revision;
  return Error{ErrorKind::kData,
               fmt::format("there is no such folder here, and the hub's cache does not have it ({})", why),
               name_.full(),
               fmt::format("check the path; a {} of the hub must be downloaded once while the machine is connected",
                           name_.kind == HubKind::kModel ? "model" : "data set")};
}

Result<HubRevision> Download::list(const std::optional<std::string>& commit) {
  if (client_.options().offline) return from_cache(commit, "HF_HUB_OFFLINE is set");
  HubName asked = name_;
  if (commit) asked.revision = *commit;
  auto revision = client_.revision(asked);
  if (revision.ok()) {
    if (!commit) TRY(cache_.remember(name_.revision, revision->commit));
    return revision;
  }
  if (client_.was_refused()) return revision;
  auto kept = from_cache(commit, revision.error().what);
  if (kept.ok())
    log_warn(fmt::format("{}: the hub cannot be reached ({}); the cache's files of commit {} are used", name_.full(),
                         revision.error().what, kept->commit));
  return kept;
}

Result<> Download::check_room(const std::vector<HubFile*>& files) {
  total_ = done_ = 0;
  uint64_t here = 0;
  for (const HubFile* file : files) {
    total_ += file->size;
    const Path part = cache_.unfinished(file->etag);
    if (env_.exists(part)) here += std::min(file->size, TRY(env_.info(part)).size_bytes);
  }
  const uint64_t free = TRY(env_.free_bytes(client_.options().cache));
  if (total_ - here + kMarginBytes <= free) return {};
  return Error{ErrorKind::kDisk,
               fmt::format("{} needs {} more in the hub's cache, and {} are free", name_.full(),
                           format_bytes(total_ - here), format_bytes(free)),
               client_.options().cache.string(), "make room, or set HF_HOME to a folder on a larger disk"};
}

void Download::show(const HubFile& file, uint64_t bytes) const {
  log_progress_line(fmt::format("downloading {}  {} of {}  {}", name_.repo, format_bytes(done_ + bytes),
                                format_bytes(total_), file.path));
}

Result<> Download::fill_blob(const HubFile& file, const std::string& commit) {
  const FolderLock lock = TRY(cache_.lock_blob(file.etag));
  const Path blob = cache_.blob(file.etag), part = cache_.unfinished(file.etag);
  if (env_.exists(blob)) return {};
  for (int tries = 1;; ++tries) {
    const uint64_t here = env_.exists(part) ? TRY(env_.info(part)).size_bytes : 0;
    if (here > file.size) TRY(env_.unlink(part));
    TRY(client_.download(name_, commit, file, part, [&](uint64_t bytes) { show(file, bytes); }));
    const auto checked = check_blob(env_, part, file.etag);
    if (checked.ok()) break;
    TRY(env_.unlink(part));  // the beginning may be another program's
    if (tries == 2) return checked.error();
  }
  TRY(env_.rename(part, blob));
  return env_.sync_dir(blob.parent_path());
}

Result<> Download::fetch_one(const HubFile& file, const std::string& commit) {
  if (!env_.exists(cache_.blob(file.etag))) TRY(fill_blob(file, commit));
  done_ += file.size;
  return cache_.link(commit, file.path, file.etag);
}

Result<> Download::fetch(HubRevision& revision, const std::vector<std::string>& paths) {
  if (is_from_cache_) return {};
  TRY(cache_.make_folders());
  std::vector<HubFile*> missing;
  for (HubFile& file : revision.files) {
    if (std::ranges::find(paths, file.path) == paths.end()) continue;
    if (env_.exists(cache_.snapshot(revision.commit) / file.path)) continue;
    if (file.etag.empty()) TRY(client_.look_up(name_, revision.commit, file));
    missing.push_back(&file);
  }
  if (missing.empty()) return {};
  TRY(check_room(missing));
  log_info(fmt::format("downloading {} files of {} ({}) at commit {}", missing.size(), name_.full(),
                       format_bytes(total_), revision.commit.substr(0, 12)));
  for (const HubFile* file : missing) {
    auto done = fetch_one(*file, revision.commit);
    log_progress_line("");
    TRY(std::move(done));
  }
  return {};
}

bool has_file(const HubRevision& revision, std::string_view path) {
  return std::ranges::any_of(revision.files, [&](const HubFile& file) { return file.path == path; });
}

// The weights as transformers chooses them: the shards of the index, or one file, or those of an adapter.
Result<std::vector<std::string>> weight_files(Env& env, const HubRevision& revision, const Path& folder,
                                              const HubName& name) {
  for (const char* single : {"model.safetensors", "adapter_model.safetensors"}) {
    if (!has_file(revision, kIndexFile) && has_file(revision, single)) return std::vector<std::string>{single};
  }
  if (!has_file(revision, kIndexFile)) {
    const bool has_pickle = std::ranges::any_of(revision.files, [](const HubFile& file) {
      return is_at_top(file.path) &&
             (file.path.ends_with(".bin") || file.path.ends_with(".pt") || file.path.ends_with(".pth"));
    });
    return Error{ErrorKind::kData,
                 has_pickle
                     ? "the weights are there only as pickle files (.bin, .pt), which can run code when they are read"
                     : "there are no safetensors weights in this revision",
                 name.full(), "name a revision or a copy with model.safetensors"};
  }
  const Json index = TRY(read_json_file(env, folder / kIndexFile));
  const Json* map = json_find(index, "weight_map");
  if (map == nullptr || !map->is_object())
    return Error{ErrorKind::kData, "the index of the weights has no weight_map", (folder / kIndexFile).string(),
                 "name another revision"};
  std::set<std::string> shards;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !has_file(revision, file.get<std::string>()))
      return Error{ErrorKind::kData,
                   fmt::format("the index names a file for {} that is not in the revision", quote(tensor)),
                   (folder / kIndexFile).string(), "name another revision"};
    shards.insert(file.get<std::string>());
  }
  return std::vector<std::string>(shards.begin(), shards.end());
}

std::vector<std::string> paths_of(const HubRevision& revision) {
  std::vector<std::string> paths;
  for (const HubFile& file : revision.files) paths.push_back(file.path);
  return paths;
}

}  // namespace

Result<HubSnapshot> model_snapshot(Env& env, const HubOptions& options, const HubName& name,
                                   const std::optional<std::string>& commit) {
  Download download(env, options, name);
  HubRevision revision = TRY(download.list(commit));
  std::vector<std::string> small;
  for (const HubFile& file : revision.files) {
    if (is_small_model_file(file.path)) small.push_back(file.path);
  }
  TRY(download.fetch(revision, small));
  const HubSnapshot snapshot = download.snapshot(revision.commit);
  const std::vector<std::string> weights = TRY(weight_files(env, revision, snapshot.folder, name));
  TRY(download.fetch(revision, weights));
  return snapshot;
}

Result<HubDataFiles> data_snapshot(Env& env, const HubOptions& options, const HubName& name,
                                   const std::optional<std::string>& commit) {
  Download download(env, options, name);
  HubRevision revision = TRY(download.list(commit));
  const std::vector<std::string> paths = paths_of(revision);
  if (const DataPathMatch found = find_data_path(paths, name.path); !found.files.empty()) {
    TRY(download.fetch(revision, found.files));
    return HubDataFiles{download.snapshot(revision.commit), found.pattern};
  }
  constexpr size_t kMaxShown = 6;
  const std::vector<std::string> others = data_paths_in(paths, kMaxShown);
  if (name.revision == "main" && !name.path.empty()) {
    HubName converted = name;
    converted.revision = kConvertedRevision;
    if (name.path.find('/') == std::string::npos) converted.path = "default/" + name.path;
    auto found = data_snapshot(env, options, converted);
    if (found.ok() || others.empty()) return found;
  }
  return Error{ErrorKind::kData,
               name.path.empty() ? std::string("the name says no path in the data set")
                                 : fmt::format("the data set has no data files at {}", quote(name.path)),
               name.full(), others.empty() ? "look at its page" : "it has " + join(others, ", ")};
}

}  // namespace mortise
