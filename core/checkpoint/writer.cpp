// The save path; writer.h draws its order, which is the promise. Durable, then announced, then old ones deleted.
#include "checkpoint/writer.h"

#include <fmt/core.h>
#include <algorithm>
#include <set>
#include <utility>

#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "checkpoint/room.h"
#include "checkpoint/state_files.h"
#include "foundation/base/rename_target.h"
#include "foundation/formats/safetensors.h"
#include "foundation/formats/sha256.h"

namespace mortise {
namespace {

// Passes bytes on and keeps their digest and number: what the manifest says is what was handed to the disk.
class HashingFile final : public WritableFile {
 public:
  explicit HashingFile(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}

  Result<> append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const auto chunk = bytes.first(std::min(bytes.size(), limits::kWriteChunkBytes));
      TRY(file_->append(chunk));
      hash_.update(chunk);
      size_bytes_ += chunk.size();
      bytes = bytes.subspan(chunk.size());
    }
    return {};
  }
  Result<> sync() override { return file_->sync(); }
  Result<> close() override { return file_->close(); }
  [[nodiscard]] const Path& path() const override { return file_->path(); }

  ManifestEntry entry(std::string path) { return {std::move(path), size_bytes_, to_hex(hash_.finish())}; }

 private:
  std::unique_ptr<WritableFile> file_;
  Sha256 hash_;
  uint64_t size_bytes_ = 0;
};

// Every file of a checkpoint but its manifest, in the order of a save.
Result<> visit_files(const CheckpointRequest& request, const std::function<Result<>(WritableFile&)>& write_tensors,
                     const std::function<Result<>(const std::string& path,
                                                  const std::function<Result<>(WritableFile&)>& write)>& visit) {
  TRY(visit(std::string(kStateJsonFile),
            [&](WritableFile& file) { return file.append_text(state_json_text(request.state)); }));
  TRY(visit(std::string(kStateTensorsFile), write_tensors));
  for (const CheckpointFile& file : request.files) TRY(visit(file.path, file.write));
  return {};
}

// Takes bytes and keeps only their number.
class CountingFile final : public WritableFile {
 public:
  Result<> append(std::span<const std::byte> bytes) override {
    size_bytes_ += bytes.size();
    return {};
  }
  void add(uint64_t size_bytes) { size_bytes_ += size_bytes; }
  Result<> sync() override { return {}; }
  Result<> close() override { return {}; }
  [[nodiscard]] const Path& path() const override { return path_; }
  [[nodiscard]] uint64_t size_bytes() const { return size_bytes_; }

 private:
  Path path_;
  uint64_t size_bytes_ = 0;
};

// One save into a temporary folder.
class FolderWriter {
 public:
  FolderWriter(Env& env, Path folder, bool sync) : env_(&env), folder_(std::move(folder)), sync_(sync) {}

  Result<Manifest> write(const CheckpointRequest& request) {
    TRY(make_folder(folder_));
    const auto write_tensors = [&](WritableFile& file) { return write_safetensors(file, request.state.tensors); };
    TRY(visit_files(request, write_tensors, [&](const auto& path, const auto& write) { return add(path, write); }));
    manifest_.place = request.place;
    manifest_.info = request.info;
    std::sort(manifest_.entries.begin(), manifest_.entries.end(),
              [](const ManifestEntry& a, const ManifestEntry& b) { return a.path < b.path; });
    const auto file = TRY(env_->open_for_write(folder_ / kManifestFile, WriteMode::kExclusive));
    TRY(file->append_text(manifest_text(manifest_)));
    if (sync_) TRY(file->sync());
    TRY(file->close());
    if (sync_) {
      for (const Path& folder : folders_) TRY(env_->sync_dir(folder));
    }
    return manifest_;
  }

 private:
  Result<> make_folder(const Path& folder) {
    if (!folders_.insert(folder).second) return {};
    // Each folder between the root and this one is new too, and its name must reach the disk as well.
    if (folder != folder_ && folder.parent_path() != folder_) TRY(make_folder(folder.parent_path()));
    return env_->create_dirs(folder);
  }
  Result<> add(const std::string& path, const std::function<Result<>(WritableFile&)>& write) {
    if (!is_safe_entry_path(path) || path == kManifestFile)
      return Error{ErrorKind::kInternal, fmt::format("'{}' cannot be a file of a checkpoint", path), folder_.string(),
                   ""};
    const Path target = folder_ / path;
    TRY(make_folder(target.parent_path()));
    HashingFile file(TRY(env_->open_for_write(target, WriteMode::kExclusive)));
    TRY(write(file));
    if (sync_) TRY(file.sync());
    TRY(file.close());
    manifest_.entries.push_back(file.entry(path));
    return {};
  }

  Env* env_;
  Path folder_;
  bool sync_;
  std::set<Path> folders_;
  Manifest manifest_;
};

}  // namespace

CheckpointFile checkpoint_text_file(std::string path, std::string bytes) {
  return {std::move(path), [text = std::move(bytes)](WritableFile& file) { return file.append_text(text); }};
}

Result<uint64_t> measure_checkpoint(const CheckpointRequest& request) {
  std::set<Path> folders{Path()};
  Manifest manifest;
  manifest.place = request.place;
  manifest.info = request.info;
  uint64_t total = 0;
  const auto add = [&](const std::string& path, const std::function<Result<>(WritableFile&)>& write) -> Result<> {
    CountingFile file;
    TRY(write(file));
    for (Path folder = Path(path).parent_path(); folders.insert(folder).second;) folder = folder.parent_path();
    manifest.entries.push_back({path, file.size_bytes(), std::string(64, '0')});
    total += disk_blocks(file.size_bytes());
    return {};
  };
  // Their bytes may lie on other ranks, which are not asked.
  const auto measure_tensors = [&](WritableFile& file) -> Result<> {
    static_cast<CountingFile&>(file).add(TRY(measure_safetensors(request.state.tensors)));
    return {};
  };
  TRY(visit_files(request, measure_tensors, add));
  return total + disk_blocks(manifest_text(manifest).size()) + folders.size() * disk_blocks(1);
}

CheckpointWriter::CheckpointWriter(Env& env, Path run_dir, const CheckpointWriterOptions& options)
    : env_(&env), run_dir_(std::move(run_dir)), options_(options) {}

Result<SavedCheckpoint> CheckpointWriter::save(const CheckpointRequest& request) {
  SavedCheckpoint saved;
  const std::string name = checkpoint_name(request.place);
  saved.path = run_dir_ / name;
  const Path temporary = temporary_beside(*env_, saved.path);
  const Path replaced = run_dir_ / (".replaced_" + name);

  const auto write_and_verify = [&]() -> Result<> {
    TRY(create_dirs_synced(*env_, run_dir_));
    saved.warnings = remove_leftovers(*env_, run_dir_);
    const Manifest written = TRY(FolderWriter(*env_, temporary, options_.sync).write(request));
    const Manifest read_back = TRY(verify_checkpoint(*env_, temporary));
    for (const ManifestEntry& entry : read_back.entries) saved.size_bytes += entry.size_bytes;
    return {};
  };
  const auto commit = [&]() -> Result<> {
    // If both exist, the older one is better: remove_leftovers has found saved.path damaged.
    if (env_->exists(saved.path) && env_->exists(replaced)) TRY(remove_checkpoint(*env_, saved.path));
    if (env_->exists(saved.path)) TRY(env_->rename(saved.path, replaced));
    Result<> renamed = env_->rename(temporary, saved.path);
    if (!renamed.ok()) {
      if (env_->exists(replaced)) (void)env_->rename(replaced, saved.path);
      return renamed;
    }
    return options_.sync ? env_->sync_dir(run_dir_) : Result<>();
  };
  Result<> done = write_and_verify();
  if (done.ok()) done = commit();
  if (!done.ok()) {
    (void)remove_tree(*env_, temporary);
    return std::move(done).error();
  }
  // From here on the checkpoint is complete, and a failure is only a warning. Nothing older is deleted before it is
  // announced.
  if (Result<> latest = write_file_atomic(*env_, run_dir_ / kLatestFile, name + "\n"); !latest.ok()) {
    saved.warnings.push_back("'latest' was not updated: " + latest.error().to_string());
    saved.not_announced = std::move(latest).error();
    return saved;
  }
  if (env_->exists(replaced)) {
    if (const Result<> removed = remove_tree(*env_, replaced); !removed.ok())
      saved.warnings.push_back(removed.error().to_string());
  }
  for (std::string& warning : apply_retention(*env_, run_dir_, options_.keep_last, saved.path))
    saved.warnings.push_back(std::move(warning));
  return saved;
}

}  // namespace mortise
