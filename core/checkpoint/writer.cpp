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
#include "foundation/base/hints.h"
#include "foundation/base/rename_target.h"
#include "foundation/base/text.h"
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

// A file of a checkpoint: tensors, or what a function writes.
struct OwnFile {
  std::string path;
  const std::vector<TensorView>* tensors = nullptr;
  std::function<Result<>(WritableFile&)> write;
};

// Every file that a rank writes, in the order of a save. Borrows from both arguments.
std::vector<OwnFile> files_of(const CheckpointRequest& request, const StateShare& state, const SaveShare& share) {
  std::vector<OwnFile> files;
  const auto add_tensors = [&](std::string path, const std::vector<TensorView>& tensors) {
    files.push_back(
        {std::move(path), &tensors, [&tensors](WritableFile& file) { return write_safetensors(file, tensors); }});
  };
  if (share.rank == 0) {
    files.push_back({std::string(kStateJsonFile), nullptr,
                     [&](WritableFile& file) { return file.append_text(state_json_text(request.state)); }});
    add_tensors(std::string(kStateTensorsFile), state.main);
  }
  if (!state.shard.empty()) add_tensors(state.file, state.shard);
  for (const CheckpointFile& file : request.files) {
    if (share.size == 1 || file.rank == share.rank) files.push_back({file.path, nullptr, file.write});
  }
  return files;
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

// Writes files into a temporary folder.
class FolderWriter {
 public:
  FolderWriter(Env& env, Path folder, bool sync) : env_(&env), folder_(std::move(folder)), sync_(sync) {}

  Result<> make_folder(const Path& folder) {
    if (!folders_.insert(folder).second) return {};
    // Each folder between the root and this one is new too, and its name must reach the disk as well.
    if (folder != folder_ && folder.parent_path() != folder_) TRY(make_folder(folder.parent_path()));
    return env_->create_dirs(folder);
  }
  // Into a folder that another rank has made.
  Result<> use_folder(const Path& folder) {
    if (!folders_.insert(folder).second) return {};
    if (env_->exists(folder)) return {};
    return Error{ErrorKind::kDisk, "this rank does not see the folder that rank 0 has made for the checkpoint",
                 folder.string(), hints::kSharedDisk};
  }
  Result<ManifestEntry> add(const std::string& path, const std::function<Result<>(WritableFile&)>& write) {
    if (!is_safe_entry_path(path) || path == kManifestFile)
      return Error{ErrorKind::kInternal, fmt::format("'{}' cannot be a file of a checkpoint", path), folder_.string(),
                   ""};
    HashingFile file(TRY(env_->open_for_write(folder_ / path, WriteMode::kExclusive)));
    TRY(write(file));
    if (sync_) TRY(file.sync());
    TRY(file.close());
    return file.entry(path);
  }
  Result<> add_manifest(const Manifest& manifest) {
    const auto file = TRY(env_->open_for_write(folder_ / kManifestFile, WriteMode::kExclusive));
    TRY(file->append_text(manifest_text(manifest)));
    if (sync_) TRY(file->sync());
    return file->close();
  }
  Result<> sync_folders() {
    for (const Path& folder : folders_) {
      if (sync_) TRY(env_->sync_dir(folder));
    }
    return {};
  }

 private:
  Env* env_;
  Path folder_;
  bool sync_;
  std::set<Path> folders_;
};

Manifest manifest_of(const CheckpointRequest& request, std::vector<ManifestEntry> entries) {
  std::ranges::sort(entries, {}, &ManifestEntry::path);
  return {request.place, request.info, std::move(entries)};
}

std::vector<ManifestEntry> entries_of(std::span<const WrittenPart> parts) {
  std::vector<ManifestEntry> all;
  for (const WrittenPart& part : parts) all.insert(all.end(), part.entries.begin(), part.entries.end());
  return all;
}

// Every rank has read its own files back. Are they here, as large as they were there?
Result<> find_parts(Env& env, const Path& folder, const Manifest& manifest) {
  for (size_t i = 0; i < manifest.entries.size(); ++i) {
    const ManifestEntry& entry = manifest.entries[i];
    if (i > 0 && manifest.entries[i - 1].path == entry.path)
      return Error{ErrorKind::kInternal, fmt::format("two ranks wrote {}", quote(entry.path)), folder.string(),
                   "report this: the ranks disagree about who writes which file"};
    const auto info = env.info(folder / entry.path);
    if (!info.ok() || info->size_bytes != entry.size_bytes)
      return Error{ErrorKind::kDisk,
                   fmt::format("rank 0 does not see {}, which another rank has written", quote(entry.path)),
                   folder.string(), hints::kSharedDisk};
  }
  return {};
}

// What rank 0 has written last, as a reader sees it. The other files were read back by the ranks that wrote them.
Result<> read_back(Env& env, const Path& folder, const Manifest& written) {
  const std::string text = TRY(env.read_file(folder / kManifestFile));
  if (text != manifest_text(written))
    return Error{ErrorKind::kDisk, "the manifest reads back differently than it was written", folder.string(),
                 "look for a failing disk"};
  const ManifestEntry* const index = written.find(std::string(kStateIndexFile));
  TRY(verify_entry(env, folder, *index));
  const std::string stored = TRY(env.read_file(folder / kStateIndexFile));
  TRY(open_state_shards(env, folder, written, stored));
  return {};
}

}  // namespace

CheckpointFile checkpoint_text_file(std::string path, std::string bytes) {
  return {std::move(path), [text = std::move(bytes)](WritableFile& file) { return file.append_text(text); }};
}

Result<WrittenPart> measure_part(const CheckpointRequest& request, const SaveShare& share) {
  const StateShare state = share_state(request.state, share);
  WrittenPart part;
  part.pieces = state.pieces;
  for (const OwnFile& one : files_of(request, state, share)) {
    CountingFile file;
    // Tensors of the state are not read.
    if (one.tensors != nullptr)
      file.add(TRY(measure_safetensors(*one.tensors)));
    else
      TRY(one.write(file));
    part.entries.push_back({one.path, file.size_bytes(), std::string(64, '0')});
  }
  return part;
}

Result<uint64_t> measure_parts(const CheckpointRequest& request, std::span<const WrittenPart> parts) {
  std::vector<ManifestEntry> entries = entries_of(parts);
  if (parts.size() > 1) {
    const std::string index = TRY(state_index_text(parts, ranked_tensors(request.state)));
    entries.push_back({std::string(kStateIndexFile), index.size(), std::string(64, '0')});
  }
  std::set<Path> folders{Path()};
  uint64_t total = 0;
  for (const ManifestEntry& entry : entries) {
    for (Path folder = Path(entry.path).parent_path(); folders.insert(folder).second;) folder = folder.parent_path();
    total += disk_blocks(entry.size_bytes);
  }
  const std::string manifest = manifest_text(manifest_of(request, std::move(entries)));
  return total + disk_blocks(manifest.size()) + folders.size() * disk_blocks(1);
}

Result<uint64_t> measure_checkpoint(const CheckpointRequest& request) {
  const WrittenPart all = TRY(measure_part(request, {}));
  return measure_parts(request, {&all, 1});
}

CheckpointWriter::CheckpointWriter(Env& env, Path run_dir, const CheckpointWriterOptions& options)
    : env_(&env), run_dir_(std::move(run_dir)), options_(options) {}

Result<Path> CheckpointWriter::begin(const CheckpointRequest& request) {
  const Path temporary = temporary_beside(*env_, run_dir_ / checkpoint_name(request.place));
  const auto make = [&]() -> Result<> {
    TRY(create_dirs_synced(*env_, run_dir_));
    warnings_ = remove_leftovers(*env_, run_dir_);
    FolderWriter folder(*env_, temporary, options_.sync);
    TRY(folder.make_folder(temporary));
    for (const CheckpointFile& file : request.files) {
      if (is_safe_entry_path(file.path)) TRY(folder.make_folder((temporary / file.path).parent_path()));
    }
    return folder.sync_folders();
  };
  if (Result<> made = make(); !made.ok()) {
    abandon(temporary);
    return std::move(made).error();
  }
  return temporary;
}

Result<WrittenPart> CheckpointWriter::write_part(const Path& temporary, const CheckpointRequest& request,
                                                 const SaveShare& share) {
  const StateShare state = share_state(request.state, share);
  FolderWriter folder(*env_, temporary, options_.sync);
  TRY(folder.use_folder(temporary));
  WrittenPart part;
  part.pieces = state.pieces;
  for (const OwnFile& file : files_of(request, state, share)) {
    TRY(folder.use_folder((temporary / file.path).parent_path()));
    part.entries.push_back(TRY(folder.add(file.path, file.write)));
  }
  TRY(folder.sync_folders());
  for (const ManifestEntry& entry : part.entries) TRY(verify_entry(*env_, temporary, entry));
  return part;
}

Result<SavedCheckpoint> CheckpointWriter::commit(const Path& temporary, const CheckpointRequest& request,
                                                 std::span<const WrittenPart> parts) {
  SavedCheckpoint saved;
  saved.warnings = std::exchange(warnings_, {});
  const auto finish = [&]() -> Result<> {
    FolderWriter folder(*env_, temporary, options_.sync);
    TRY(folder.use_folder(temporary));
    std::vector<ManifestEntry> entries = entries_of(parts);
    const std::string index = TRY(state_index_text(parts, ranked_tensors(request.state)));
    entries.push_back(
        TRY(folder.add(std::string(kStateIndexFile), [&](auto& file) { return file.append_text(index); })));
    const Manifest manifest = manifest_of(request, std::move(entries));
    TRY(find_parts(*env_, temporary, manifest));
    TRY(folder.add_manifest(manifest));
    TRY(folder.sync_folders());
    TRY(read_back(*env_, temporary, manifest));
    for (const ManifestEntry& entry : manifest.entries) saved.size_bytes += entry.size_bytes;
    return publish(temporary, request.place, saved);
  };
  if (Result<> done = finish(); !done.ok()) {
    abandon(temporary);
    return std::move(done).error();
  }
  return saved;
}

void CheckpointWriter::abandon(const Path& temporary) { (void)remove_tree(*env_, temporary); }

Result<SavedCheckpoint> CheckpointWriter::save(const CheckpointRequest& request) {
  SavedCheckpoint saved;
  const Path temporary = temporary_beside(*env_, run_dir_ / checkpoint_name(request.place));
  const auto write_and_verify = [&]() -> Result<> {
    TRY(create_dirs_synced(*env_, run_dir_));
    saved.warnings = remove_leftovers(*env_, run_dir_);
    const StateShare state = share_state(request.state, {});
    FolderWriter folder(*env_, temporary, options_.sync);
    TRY(folder.make_folder(temporary));
    std::vector<ManifestEntry> entries;
    for (const OwnFile& file : files_of(request, state, {})) {
      if (is_safe_entry_path(file.path)) TRY(folder.make_folder((temporary / file.path).parent_path()));
      entries.push_back(TRY(folder.add(file.path, file.write)));
    }
    TRY(folder.add_manifest(manifest_of(request, std::move(entries))));
    TRY(folder.sync_folders());
    const Manifest read_back = TRY(verify_checkpoint(*env_, temporary));
    for (const ManifestEntry& entry : read_back.entries) saved.size_bytes += entry.size_bytes;
    return publish(temporary, request.place, saved);
  };
  if (Result<> done = write_and_verify(); !done.ok()) {
    abandon(temporary);
    return std::move(done).error();
  }
  return saved;
}

// By rename. From then on the checkpoint is complete, and a failure is only a warning.
Result<> CheckpointWriter::publish(const Path& temporary, const CheckpointPlace& place, SavedCheckpoint& saved) {
  const std::string name = checkpoint_name(place);
  const Path replaced = run_dir_ / (".replaced_" + name);
  saved.path = run_dir_ / name;
  // If both exist, the older one is better: remove_leftovers has found saved.path damaged.
  if (env_->exists(saved.path) && env_->exists(replaced)) TRY(remove_checkpoint(*env_, saved.path));
  if (env_->exists(saved.path)) TRY(env_->rename(saved.path, replaced));
  Result<> renamed = env_->rename(temporary, saved.path);
  if (!renamed.ok()) {
    if (env_->exists(replaced)) (void)env_->rename(replaced, saved.path);
    return renamed;
  }
  if (options_.sync) TRY(env_->sync_dir(run_dir_));
  // Nothing older is deleted before it is announced.
  if (Result<> latest = write_file_atomic(*env_, run_dir_ / kLatestFile, name + "\n"); !latest.ok()) {
    saved.warnings.push_back("'latest' was not updated: " + latest.error().to_string());
    saved.not_announced = std::move(latest).error();
    return {};
  }
  if (env_->exists(replaced)) {
    if (const Result<> removed = remove_tree(*env_, replaced); !removed.ok())
      saved.warnings.push_back(removed.error().to_string());
  }
  for (std::string& warning : apply_retention(*env_, run_dir_, options_.keep_last, saved.path))
    saved.warnings.push_back(std::move(warning));
  return {};
}

}  // namespace mortise
